"""What another API's request becomes: a chat request, whose errors speak of that other request."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gateway.openai.schemas import ChatCompletionRequest
from pageloom.errors import InvalidRequest
from pageloom.field_errors import invalid_request


def chat_request(**fields: Any) -> ChatCompletionRequest:
    """Raises InvalidRequest if a value does not fit. The other APIs have the members of a tool's `function` in the
    tool itself."""
    try:
        return ChatCompletionRequest(**fields)
    except ValidationError as error:
        found = invalid_request([{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors()])
        param = (found.param or "").replace(".function.", ".")
        raise InvalidRequest(found.message.replace(found.param or "", param, 1), param=param) from None
