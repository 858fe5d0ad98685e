"""Can no value satisfy two of these schemas? If so, oneOf is anyOf, which a grammar can say. Sound, not complete: it
looks at types, at const and enum, and at those of required properties, such as the tag of a tagged union."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import orjson

from pageloom.grammars.schema_keywords import Schema

# Above this only alternatives with one tag in common are told apart, which takes no pairs.
MAX_PAIRED = 32
MAX_TAGS = 16
_MAX_REFERENCES = 32
_ALL_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})


def first_overlap(alternatives: Sequence[Schema], definitions: Mapping[str, Schema]) -> tuple[int, int] | None:
    """The indices of two schemas that may overlap; None if no two do. The schemas are normalized."""
    resolved = [_resolved(schema, definitions) for schema in alternatives]
    if _told_apart_by_a_tag(resolved, definitions):
        return None
    for (left, one), (right, other) in combinations(enumerate(resolved[: MAX_PAIRED + 1]), 2):
        if right == MAX_PAIRED or not _disjoint(one, other, definitions):
            return left, right
    return None


def _told_apart_by_a_tag(alternatives: Sequence[Schema], definitions: Mapping[str, Schema]) -> bool:
    values = [_values(schema) for schema in alternatives]
    if _no_two_share(values):
        return True
    return all(_types(schema) == {"object"} for schema in alternatives) and any(
        _no_two_share(_values(_property(schema, tag, definitions)) for schema in alternatives)
        for tag in _required_by_all(alternatives)
    )


def _no_two_share(values: Iterable[frozenset[bytes] | None]) -> bool:
    seen: set[bytes] = set()
    for each in values:
        if each is None or seen & each:
            return False
        seen |= each
    return True


def _disjoint(one: Schema, other: Schema, definitions: Mapping[str, Schema]) -> bool:
    if one is False or other is False or not _types(one) & _types(other):
        return True
    if _no_two_share([_values(one), _values(other)]):
        return True
    if _types(one) & _types(other) != {"object"}:
        return False
    return any(
        _no_two_share([_values(_property(schema, name, definitions)) for schema in (one, other)])
        or not _types(_property(one, name, definitions)) & _types(_property(other, name, definitions))
        for name in _required_by_all([one, other])
    )


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """What a schema that is only a reference refers to."""
    for _ in range(_MAX_REFERENCES):
        if isinstance(schema, bool) or "$ref" not in schema or len(schema) > 1:
            break
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _property(schema: Schema, name: str, definitions: Mapping[str, Schema]) -> Schema:
    if isinstance(schema, bool):
        return schema
    return _resolved(schema.get("properties", {}).get(name, True), definitions)


def _required_by_all(schemas: Sequence[Schema]) -> list[str]:
    """In the first one's order, and not so many that trying them takes long."""
    required: list[list[str]] = [[] if isinstance(schema, bool) else schema.get("required", []) for schema in schemas]
    in_others = set(required[0]).intersection(*required[1:])
    return [name for name in required[0] if name in in_others][:MAX_TAGS]


def _values(schema: Schema) -> frozenset[bytes] | None:
    """All that it allows, if it lists them."""
    if isinstance(schema, bool):
        return None
    if "const" in schema:
        return frozenset([_spelled(schema["const"])])
    return frozenset(map(_spelled, schema["enum"])) if "enum" in schema else None


def _spelled(value: object) -> bytes:
    # 1 and 1.0 are one value.
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)


def _types(schema: Schema) -> frozenset[str]:
    """A superset of those that its values may have."""
    if isinstance(schema, bool):
        return _ALL_TYPES if schema else frozenset()
    if "const" in schema or "enum" in schema:
        return frozenset(map(_type_of, [schema["const"]] if "const" in schema else schema["enum"]))
    named = schema.get("type", _ALL_TYPES)
    names = {named} if isinstance(named, str) else set(named)
    return frozenset("number" if name == "integer" else name for name in names)


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "number")
