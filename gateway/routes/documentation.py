"""What /openapi.json says of the answers that FastAPI cannot see in a signature."""

from __future__ import annotations

from typing import Any

from gateway.schemas import ErrorResponse

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, server-sent events of its chunks.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_DESCRIPTIONS: dict[int | str, str] = {
    400: "A field of the request is wrong; `param` names it.",
    404: "The model does not exist.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    # Also keeps FastAPI from documenting its own 422, which is never sent.
    "4XX": "Something else is wrong with the request.",
    500: "Something failed inside.",
    503: "Not now; try again after Retry-After.",
    504: "The time that x-request-timeout-s gives has passed.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": ErrorResponse} for status, text in _DESCRIPTIONS.items()
}
