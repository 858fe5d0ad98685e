"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

PATH_PREFIX = "/v1/messages"
_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """The body of every answer of `PATH_PREFIX` with a status of 400 or more."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail


def envelope(status: int, message: str) -> Mapping[str, object]:
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
