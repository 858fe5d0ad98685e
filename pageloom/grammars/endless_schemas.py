"""Does every value of this schema go on for ever, because what it must contain contains it in turn? A grammar of such
a schema has a next token at every point, and no end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pageloom.grammars.schema_keywords import Schema

# Definitions settle from the innermost outwards, all that are ready in each round; a schema that needs more rounds
# passes unseen.
_MAX_ROUNDS = 64


def endless_definitions(definitions: Mapping[str, Schema]) -> list[str]:
    """The names of those that have no finite value, in their order. The schemas are normalized."""
    ending: set[str] = set()
    for _ in range(_MAX_ROUNDS):
        # What is referred to comes after what refers to it, most of the time.
        found = [
            name for name in reversed(list(definitions)) if name not in ending and _adds(definitions, name, ending)
        ]
        if not found:
            return [name for name in definitions if name not in ending]
    return []


def _adds(definitions: Mapping[str, Schema], name: str, ending: set[str]) -> bool:
    if ends := _can_end(definitions[name], ending):
        ending.add(name)
    return ends


def _can_end(schema: Schema, ending: Collection[str]) -> bool:
    """Whether it has a finite value, given the definitions that have."""
    if isinstance(schema, bool) or "const" in schema or "enum" in schema:
        return True
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in ending:
        return False
    if not all(_can_end(each, ending) for each in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_can_end(each, ending) for each in schema["anyOf"]):
        return False
    return _type_can_end(schema, ending)


def _type_can_end(schema: Mapping[str, Any], ending: Collection[str]) -> bool:
    named = schema.get("type", ("null",))
    types = {named} if isinstance(named, str) else set(named)
    if types - {"object", "array"}:
        return True
    object_ends = "object" in types and all(
        _can_end(schema.get("properties", {}).get(name, True), ending) for name in schema.get("required", ())
    )
    return object_ends or ("array" in types and _items_can_end(schema, ending))


def _items_can_end(schema: Mapping[str, Any], ending: Collection[str]) -> bool:
    num_items = schema.get("minItems", 0)
    first: Sequence[Schema] = schema.get("prefixItems", ())
    if not all(_can_end(each, ending) for each in first[:num_items]):
        return False
    return num_items <= len(first) or _can_end(schema.get("items", True), ending)
