"""May a keyword of a JSON schema have this value? For keywords whose values are no schemas and not bounded in all. Each
check gives the value to keep, None to drop the keyword, and raises ValueError with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from pageloom.grammars.schema_keywords import DIALECTS, FORMATS, TYPES, UNENFORCED_FORMATS


def dialect(value: object) -> None:
    if not isinstance(value, str) or value.rstrip("#") not in DIALECTS:
        raise ValueError(f"$schema must be one of {', '.join(sorted(DIALECTS))}")


def types(value: object) -> object:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise ValueError(f"type must be one of {', '.join(sorted(TYPES))}, or a list of these")
    return value


def number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it must be a number")
    return value


def positive_number(value: object) -> int | float:
    if number(value) <= 0:
        raise ValueError("it must be a number above 0")
    return number(value)


def count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("it must be a whole number of at least 0")
    return value


def format_name(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("format must be a string")
    if value in UNENFORCED_FORMATS:
        raise ValueError(f"the format {value!r} is not supported; supported are {', '.join(FORMATS)}")
    return value if value in FORMATS else None


def required(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("required must be a list of strings")
    return list(dict.fromkeys(value))


VALUE_CHECKS: Final[Mapping[str, Callable[[object], object]]] = {
    "$schema": dialect,
    "type": types,
    "required": required,
    "format": format_name,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), number),
    "multipleOf": positive_number,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), count),
}


def kind_of(value: object) -> str:
    """What a value that is no schema is, in words."""
    names: Mapping[type, str] = {str: "a string", list: "a list", type(None): "null"}
    return names.get(type(value), "a number")
