"""What /openapi.json says of the answers that FastAPI cannot see in a signature."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

from gateway.anthropic.errors import AnthropicErrorResponse
from gateway.openai.answer_schemas import ErrorResponse

Responses = dict[int | str, dict[str, Any]]
EVENT_STREAM = "text/event-stream"
_REFERENCE = "#/components/schemas/{model}"


def streamed(whole: type[BaseModel], event: TypeAdapter[Any], *, ends_with_done: bool = False) -> Responses:
    """An answer that is `whole`, or with `stream` server-sent events whose data is an `event`. The definitions that its
    schema needs come with it; `http/openapi.py` puts them to the others."""
    schema = event.json_schema(mode="serialization", ref_template=_REFERENCE)
    definitions = schema.pop("$defs", {})
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    description = "The answer; with `stream`, server-sent events with the names of their types."
    if ends_with_done:
        data = {"anyOf": [{"const": "[DONE]"}, data]}
        description = "The answer; with `stream`, server-sent events of its chunks and at last `data: [DONE]`."
    # Of each event, as OpenAPI 3.2 has it.
    item = {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": data},
        "$defs": definitions,
    }
    return {200: {"description": description, "model": whole, "content": {EVENT_STREAM: {"itemSchema": item}}}}


_DESCRIPTIONS = {
    400: "A field of the request is wrong; `param` names it.",
    404: "What the path or a field names, such as the model, does not exist.",
    409: "The request_id is that of a request that still runs.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is not said to be JSON.",
    431: "The headers are too many, or too large.",
    500: "Something failed inside.",
    503: "Not now; try again after Retry-After.",
    504: "The time that x-request-timeout-s gives has passed.",
}


def errors(*statuses: int) -> Responses:
    """The answers with these statuses, all of the one shape that errors have."""
    return {status: {"description": _DESCRIPTIONS[status], "model": ErrorResponse} for status in statuses}


# What any route may answer.
COMMON_ERRORS = errors(414, 431, 500)
ERRORS_WITHOUT_BODY = COMMON_ERRORS | errors(404)
ERRORS_OF_TEXT = ERRORS_WITHOUT_BODY | errors(400, 413, 415)
ERRORS_OF_LOOKUPS = ERRORS_WITHOUT_BODY | errors(400)
ERRORS_OF_UPLOADS = ERRORS_OF_TEXT | errors(503)
# Of routes that ask the engine.
ERRORS = ERRORS_OF_TEXT | errors(409, 503, 504)
ANTHROPIC_ERRORS: Responses = {status: answer | {"model": AnthropicErrorResponse} for status, answer in ERRORS.items()}
