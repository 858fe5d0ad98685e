"""What another API's request becomes: a chat request, whose errors speak of that other request."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from gateway.errors import invalid_body
from gateway.openai.schemas import ChatCompletionRequest
from pageloom.errors import InvalidRequest


def chat_request(**fields: Any) -> ChatCompletionRequest:
    """Raises InvalidRequest if a value does not fit. The other APIs have the members of a tool's `function` in the
    tool itself."""
    try:
        return ChatCompletionRequest(**fields)
    except ValidationError as error:
        found = invalid_body(error)
        param = (found.param or "").replace(".function.", ".").replace(".custom.", ".")
        raise InvalidRequest(found.message.replace(found.param or "", param, 1), param=param) from None
