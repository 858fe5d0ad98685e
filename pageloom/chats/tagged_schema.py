"""The schema of a tool's arguments -> what may stand in the tag of each, for models that write them so. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pageloom.chats.offered_tools import OfferedTool
from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle
from pageloom.parsing.tagged_arguments import is_text

# What says nothing of single arguments, or is looked at here.
_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"}
    | {"title", "description", "examples", "default", "$comment"}
)
_DEFINITIONS = ("$defs", "definitions")
# Of a text beside these nothing is left open.
_FREE_TEXT_KEYWORDS = frozenset({"type", "title", "description", "examples", "default", "$comment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedArgument:
    """One of the `texts`, or else JSON of the `schema`, or else any text."""

    name: str
    is_required: bool
    texts: tuple[str, ...] | None = None
    schema: str = ""


def tagged_arguments(tool: OfferedTool, style: JsonStyle) -> Iterator[TaggedArgument]:
    """In the order of the schema. Raises InvalidRequest if the schema cannot be followed, which for a tool that is not
    strict only lets an argument be any text."""
    schema, field = tool.parameters, tool.schema_field
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{field} must be the schema of an object", param=field)
    others = sorted(set(schema) - _KEYWORDS)
    if others and tool.strict:
        raise _not_followed(field, f"/{others[0]}")
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InvalidRequest(f"{field} must have properties as an object and required as a list", param=field)
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    for name, inner in properties.items():
        yield _argument(tool, name, inner, definitions, style, is_required=name in required)


def _argument(
    tool: OfferedTool,
    name: str,
    schema: object,
    definitions: Mapping[str, Any],
    style: JsonStyle,
    *,
    is_required: bool,
) -> TaggedArgument:
    pointer = f"/properties/{name.replace('~', '~0').replace('/', '~1')}"
    if not is_text(schema):
        try:
            inner = {**definitions, **schema} if isinstance(schema, dict) else schema
            followed = grammars.inline_json_schema(inner, param=tool.schema_field, style=style)
            return TaggedArgument(name=name, is_required=is_required, schema=followed)
        except InvalidRequest:
            if tool.strict:
                raise
    elif isinstance(schema, dict) and ("enum" in schema or "const" in schema):
        texts = tuple(dict.fromkeys(schema["enum"] if "enum" in schema else [schema["const"]]))
        if texts and all(texts):
            return TaggedArgument(name=name, is_required=is_required, texts=texts)
    if tool.strict and isinstance(schema, dict) and (others := sorted(set(schema) - _FREE_TEXT_KEYWORDS)):
        raise _not_followed(tool.schema_field, f"{pointer}/{others[0]}")
    return TaggedArgument(name=name, is_required=is_required)


def _not_followed(field: str, pointer: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: the keyword at {pointer} cannot be followed with this model, which writes each argument in a tag",
        param=field,
    )
