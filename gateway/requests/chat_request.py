"""What another API's request becomes: a chat request, whose errors speak of that other request."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gateway.openai.schemas import ChatCompletionRequest
from pageloom.errors import InvalidRequest
from pageloom.field_errors import invalid_value


def chat_request(**fields: Any) -> ChatCompletionRequest:
    """Raises InvalidRequest if a value does not fit. The other APIs have the members of a tool's `function` in the
    tool itself."""
    try:
        return ChatCompletionRequest(**fields)
    except ValidationError as error:
        found = invalid_value(error)
        param = (found.param or "").replace(".function.", ".").replace(".custom.", ".")
        raise InvalidRequest(found.message.replace(found.param or "", param, 1), param=param) from None
