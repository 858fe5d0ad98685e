"""Is a text of the program's one that can be encoded? Python's may hold half of a surrogate pair."""

from __future__ import annotations

from pageloom.errors import InvalidRequest


def require_unicode(text: str, name: str) -> None:
    """Raises InvalidRequest if it is not: no tokenizer takes it, and no message can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode: it has a lone surrogate", param=name) from None
