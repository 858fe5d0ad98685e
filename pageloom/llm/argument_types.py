"""Has an argument the type that its annotation says, and can what is in it travel? If not, the error names it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pageloom.errors import InvalidRequest, PageloomError

_NUMBERS: Mapping[object, type] = {int: Integral, float: Real}
_WORDS: Mapping[object, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "booleans"),
    NoneType: ("None", "None"),
}


def require_types(given: Mapping[str, object], annotated_in: type, refusal: type[PageloomError]) -> None:
    """Raises `refusal`. `given` are arguments that `annotated_in`, a TypedDict or a dataclass, knows. Integers and
    numbers may be numpy's, a sequence any collection that is no text; a bool is no number."""
    for name, kind in _hints(annotated_in).items():
        if name in given:
            require_type(name, given[name], kind, refusal)


def require_type(name: str, value: object, kind: Any, refusal: type[PageloomError] = InvalidRequest) -> None:
    """The same of one argument."""
    if not _fits(value, kind):
        raise refusal(f"{name} must be {_described(kind)}, not {reprlib.repr(value)}", param=name)


def require_unicode(name: str, text: str) -> None:
    """Raises InvalidRequest for half of a surrogate pair, which neither tokenizers nor messages can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is not valid Unicode: it has a lone surrogate at character {error.start}", param=name
        ) from None


def require_json(name: str, value: object) -> None:
    """Raises InvalidRequest for what only Python can hold."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} must be what JSON can hold: {error}", param=name) from None


def _described(kind: Any) -> str:
    """str | Sequence[str] -> "a string or a list of strings"."""
    if isinstance(kind, UnionType):
        return " or ".join(_described(member) for member in get_args(kind))
    if kind in _WORDS:
        return _WORDS[kind][0]
    if get_origin(kind) is Sequence:
        return f"a list of {_plural(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        return f"a mapping of {' to '.join(map(_plural, get_args(kind)))}"
    return str(kind.__name__)


@cache
def _hints(annotated_in: type) -> Mapping[str, Any]:
    return get_type_hints(annotated_in)


def _plural(kind: Any) -> str:
    return "anything" if kind is Any else _WORDS[kind][1] if kind in _WORDS else str(kind.__name__)


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if kind is Any:
        return True
    if get_origin(kind) is Sequence:
        if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray | Mapping):
            return False
        return all(_fits(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is Mapping:
        key_kind, value_kind = get_args(kind)
        return isinstance(value, Mapping) and all(
            _fits(key, key_kind) and _fits(item, value_kind) for key, item in value.items()
        )
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    return isinstance(value, kind)
