"""Is a JSON text of bearable shape? Found before it is parsed."""

from __future__ import annotations

from pageloom.request_limits import RequestLimits

_DEFAULTS = RequestLimits()
# Of JSON within a string of a body, such as a schema.
MAX_INNER_DEPTH = 64
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def excess_of(
    body: bytes,
    max_depth: int = MAX_INNER_DEPTH,
    max_containers: int = _DEFAULTS.max_json_containers,
    max_strings: int = _DEFAULTS.max_json_strings,
) -> str | None:
    """What the body has too much of. Each step is one pass of C code over the body, or over what is left of it; the
    depth is found by removing the innermost brackets once per level."""
    # An escaped quotation mark ends no string.
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if unescaped.count(b'"') > 2 * max_strings:
        return f"it has more than {max_strings} strings"
    outside = b"".join(unescaped.split(b'"')[::2])
    brackets = outside.translate(_BRACES_TO_BRACKETS, _ALL_BUT_BRACKETS)
    if brackets.count(b"[") > max_containers:
        return f"it has more than {max_containers} arrays and objects"
    for _ in range(max_depth):
        shallower = brackets.replace(b"[]", b"")
        if len(shallower) == len(brackets):
            # Nothing is left, or only what does not match, which the parser reports.
            return None
        brackets = shallower
    return f"it is nested deeper than {max_depth} levels" if brackets else None
