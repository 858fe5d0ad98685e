"""What pydantic found wrong -> an InvalidRequest that names the first wrong field and what it accepts."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from pageloom.errors import InvalidRequest

# What fields that take several types accept, for error messages.
ACCEPTED_TYPES: Mapping[str, str] = {
    "prompt": "a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "input": "a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": "a string or a list of strings",
    "content": 'a string, null, or a list of parts such as {"type": "text", "text": "..."}',
    "tool_choice": "none, auto, required, or an object that names a function",
    "arguments": "a JSON object as a string",
    "chat_template_kwargs": "an object whose values are strings, numbers, booleans or null",
}
# How pydantic names the scalar members of a union in an error's location.
_UNION_MEMBERS = frozenset({"str", "int", "float", "bool"})
_SIZE_ERRORS = {
    "too_short": "has {actual_length} items; at least {min_length} are needed",
    "too_long": "has {actual_length} items; at most {max_length} are accepted",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
}
_TYPE_ERRORS = frozenset({"string_type", "list_type", "int_type", "dict_type", "model_type"})
# The value fits one of the types that a field takes, and a part of it is wrong.
_ERRORS_OF_PARTS = frozenset({"missing", "literal_error", "string_pattern_mismatch"})


@contextmanager
def naming_fields(prefix: str = "") -> Generator[None]:
    """What pydantic finds wrong in here is an InvalidRequest. `prefix` is the field that the value stands in."""
    try:
        yield
    except ValidationError as error:
        within = ("body", *prefix.split(".")) if prefix else ("body",)
        raise invalid_request([{**details, "loc": (*within, *details["loc"])} for details in error.errors()]) from None


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Says what is wrong with the first wrong field. `errors` are pydantic's: several for one field if
    it takes several types."""
    error = _most_telling(errors)
    loc, kind, message = error["loc"], error["type"], str(error["msg"])
    if len(loc) <= 1:
        return InvalidRequest("the request body must be a JSON object")
    field = _path(loc)
    accepted = ACCEPTED_TYPES.get(field.rpartition(".")[2]) or ACCEPTED_TYPES.get(str(loc[1]))
    part = _path(loc, into_unions=True)
    if accepted is not None and (kind in _TYPE_ERRORS or (kind == "literal_error" and part == field)):
        return InvalidRequest(f"{field} must be {accepted}", param=field)
    if kind in _ERRORS_OF_PARTS:
        field = part
    if kind == "missing":
        return InvalidRequest(f"{field} is required", param=field)
    if kind in _SIZE_ERRORS:
        # Of a mapping that is too large pydantic does not tell how large it is.
        sizes = {name: "too many" if value is None else value for name, value in error["ctx"].items()}
        return InvalidRequest(f"{field} {_SIZE_ERRORS[kind].format(**sizes)}", param=field)
    if message.startswith("Input "):
        return InvalidRequest(field + message.removeprefix("Input"), param=field)
    return InvalidRequest(f"{field}: {message}", param=field)


def _most_telling(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of a field that takes several types each fails in its own way; the one that fits the value fails by
    something else than its type."""
    first = errors[0]["loc"][:2]
    of_field = [error for error in errors if error["loc"][:2] == first]
    return next((error for error in of_field if error["type"] not in _TYPE_ERRORS), errors[0])


def _path(loc: Sequence[str | int], *, into_unions: bool = False) -> str:
    """("body", "messages", 0, "content", "list[ContentPart]", 1) -> "messages[0].content", or "messages[0].content[1]"
    with `into_unions`."""
    path = ""
    for part in loc[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part}" if path else part
        elif not into_unions:
            # From here on the location is inside one member of a union.
            break
    return path
