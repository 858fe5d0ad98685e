"""Gemma's tool arguments, `{city:<|"|>Paris<|"|>,days:3}` -> JSON text, piece by piece. Pure.
Source of the notation: the chat template of Gemma 4."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pageloom.parsing.json_span import WHITESPACE, StringSpan
from pageloom.parsing.marker_search import MarkerSearch

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "None": "null", "True": "true", "False": "false"}


class GemmaArguments:
    """Keys stand bare, strings between `quote`s; JSON's own quotes are taken too. See `CallReader`."""

    def __init__(self, name: str, quote: str) -> None:
        self.name: str | None = name
        self.begins_otherwise = False
        self.ended = self.malformed = False
        self.rest = ""
        self._quote = quote
        self._open_brackets = ["{"]
        self._gained = ["{"]
        self._word = ""
        self._search = MarkerSearch((quote,))
        self._json_string = StringSpan()
        self._after_string: Callable[[str, int], int] = self._after_value
        self._step: Callable[[str, int], int] = self._key

    def push(self, text: str) -> str:
        position = 0
        while position < len(text) and not self.ended:
            position = self._step(text, position)
        if self.ended:
            self.rest = text[position:]
        gained, self._gained = "".join(self._gained), []
        return gained

    def _key(self, text: str, position: int) -> int:
        character = text[position]
        if not self._word and character in WHITESPACE:
            return position + 1
        if not self._word and character == "}":
            return self._close(position)
        if not self._word and character == '"':
            return self._open_json_string(position, self._colon)
        if character == ":":
            self._gained.append(json.dumps(self._word.strip(), ensure_ascii=False) + ": ")
            self._word, self._step = "", self._value
            return position + 1
        self._word += character
        if self._word == self._quote:
            return self._open_string(position, self._colon)
        return position + 1

    def _colon(self, text: str, position: int) -> int:
        if text[position] == ":":
            self._gained.append(": ")
            self._step = self._value
        elif text[position] not in WHITESPACE:
            return self._give_up(position)
        return position + 1

    def _value(self, text: str, position: int) -> int:
        character = text[position]
        if not self._word and character in WHITESPACE:
            return position + 1
        if not self._word and character in "{[":
            self._open_brackets.append(character)
            self._gained.append(character)
            self._step = self._key if character == "{" else self._value
            return position + 1
        if not self._word and character == "]" and self._open_brackets[-1] == "[":
            return self._close(position)
        if not self._word and character == '"':
            return self._open_json_string(position, self._after_value)
        if character in ",}]":
            self._gained.append(_scalar(self._word))
            self._word, self._step = "", self._after_value
            return position
        self._word += character
        if self._word == self._quote:
            return self._open_string(position, self._after_value)
        return position + 1

    def _after_value(self, text: str, position: int) -> int:
        character = text[position]
        if character in "}]":
            return self._close(position)
        if character == ",":
            self._gained.append(", ")
            self._step = self._key if self._open_brackets[-1] == "{" else self._value
        elif character not in WHITESPACE:
            return self._give_up(position)
        return position + 1

    def _close(self, position: int) -> int:
        self._gained.append("}" if self._open_brackets.pop() == "{" else "]")
        self.ended = not self._open_brackets
        self._step = self._after_value
        return position + 1

    def _open_string(self, position: int, following: Callable[[str, int], int]) -> int:
        self._word, self._step, self._after_string = "", self._in_string, following
        self._gained.append('"')
        return position + 1

    def _in_string(self, text: str, position: int) -> int:
        piece, marker, rest = self._search.push(text[position:])
        self._gained.append(json.dumps(piece, ensure_ascii=False)[1:-1])
        if marker is not None:
            self._gained.append('"')
            self._step = self._after_string
        return len(text) - len(rest)

    def _open_json_string(self, position: int, following: Callable[[str, int], int]) -> int:
        self._json_string = StringSpan()
        self._step, self._after_string = self._in_json_string, following
        self._gained.append('"')
        return position + 1

    def _in_json_string(self, text: str, position: int) -> int:
        end = self._json_string.end(text, position)
        following = len(text) if end < 0 else end
        self._gained.append(text[position:following])
        if end >= 0:
            self._step = self._after_string
        return following

    def _give_up(self, position: int) -> int:
        self.ended = self.malformed = True
        return position


def _scalar(word: str) -> str:
    word = word.strip()
    if _NUMBER.fullmatch(word):
        return word
    return _WORDS.get(word) or json.dumps(word, ensure_ascii=False)
