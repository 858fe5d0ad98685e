"""JSON that arrives in pieces: where a string or a container ends. Pure; each character is looked at once."""

from __future__ import annotations

import json
import re

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
WHITESPACE = " \t\r\n"


class StringSpan:
    """Finds the end of a JSON string whose opening quote has been read."""

    __slots__ = ("_escaped",)

    def __init__(self) -> None:
        self._escaped = False

    def end(self, text: str, start: int) -> int:
        """The position after the closing quote, or -1 if it is not in this text."""
        position = start
        while position < len(text):
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = _IN_STRING.search(text, position)
            if match is None:
                return -1
            position = match.end()
            if match[0] == '"':
                return position
            self._escaped = True
        return -1


class ContainerSpan:
    """Finds the end of a JSON object or array whose opening bracket has been read. What is inside is not
    checked beyond that brackets and strings end."""

    __slots__ = ("_depth", "_string")

    def __init__(self) -> None:
        self._depth = 1
        self._string: StringSpan | None = None

    def end(self, text: str, start: int) -> int:
        """The position after the closing bracket, or -1 if it is not in this text."""
        position = start
        while position < len(text):
            if self._string is not None:
                position = self._string.end(text, position)
                if position < 0:
                    return -1
                self._string = None
                continue
            match = _OUTSIDE.search(text, position)
            if match is None:
                return -1
            position = match.end()
            if match[0] == '"':
                self._string = StringSpan()
                continue
            self._depth += 1 if match[0] in "{[" else -1
            if self._depth == 0:
                return position
        return -1


def string_text(raw: str) -> str:
    """What stands between the quotes of a JSON string, decoded."""
    try:
        decoded = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        # An invalid escape; the model meant something by it.
        return raw
    assert isinstance(decoded, str)
    return decoded
