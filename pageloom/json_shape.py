"""Is a JSON text of bearable shape? Found before it is parsed."""

from __future__ import annotations

import re

# Of JSON within a string of a body, such as a schema.
MAX_INNER_DEPTH = 64
# A million empty arrays fit 4 MiB, and would hold up everyone else for a second.
MAX_CONTAINERS = 65_536
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def excess_of(body: bytes, max_depth: int = MAX_INNER_DEPTH) -> str | None:
    """What the body has too much of. The depth is found by removing the innermost brackets once per
    level, each time in one pass over what is left."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return None
    brackets = _STRING.sub(b"", body).translate(_BRACES_TO_BRACKETS, _ALL_BUT_BRACKETS)
    if len(brackets) > 2 * MAX_CONTAINERS:
        return f"it has more than {MAX_CONTAINERS} arrays and objects"
    for _ in range(max_depth):
        shallower = brackets.replace(b"[]", b"")
        if len(shallower) == len(brackets):
            # Nothing is left, or only what does not match, which the parser reports.
            return None
        brackets = shallower
    return f"it is nested deeper than {max_depth} levels" if brackets else None
