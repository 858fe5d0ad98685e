"""Names of keyword arguments: what nobody knows is an error that says what may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import get_type_hints

_NOWHERE: Mapping[str, str] = MappingProxyType({})


def check_names(caller: str, given: Iterable[str], known_in: type, not_here: Mapping[str, str] = _NOWHERE) -> None:
    """Raises TypeError for a name that `known_in`, a TypedDict or a dataclass, does not have. `not_here` says of names
    that others know why they are not known here."""
    known = get_type_hints(known_in)
    for name in given:
        if name in known:
            continue
        message = f"{caller}() got an unexpected keyword argument {name!r}"
        if name in not_here:
            raise TypeError(f"{message}: {not_here[name]}")
        close = difflib.get_close_matches(name, known, n=1)
        raise TypeError(f"{message}; did you mean {close[0]!r}?" if close else message)
