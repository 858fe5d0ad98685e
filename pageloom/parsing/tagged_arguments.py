"""Qwen3-Coder's tool arguments, `<parameter=city>\nParis\n</parameter>`, -> JSON text, piece by piece. Pure.
Source of the notation: the chat template of Qwen3-Coder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from pageloom.parsing.call_readers import NO_ARGUMENTS
from pageloom.parsing.json_span import WHITESPACE
from pageloom.parsing.marker_search import MarkerSearch

OPENER, CLOSER = "<function=", "</function>"
_PARAMETER, _END_OF_VALUE = "<parameter=", "</parameter>"
MAX_NAME_CHARS = 256
_NO_SCHEMA: Mapping[str, Any] = {}
_WORDS = {"True": "true", "False": "false", "None": "null"}


class TaggedArguments:
    """Reads from behind `OPENER`. The values have no types of their own: `parameters`, the schema of each tool's
    arguments by its name, tells which are text, and these come as they are written; a value of another type is JSON,
    or else text. See `CallReader`."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self.name: str | None = None
        self.begins_otherwise = False
        self.ended = self.malformed = False
        self.rest = ""
        self._parameters = parameters
        self._word = ""
        self._between = MarkerSearch((_PARAMETER, CLOSER))
        self._value_end = MarkerSearch((_END_OF_VALUE,))
        self._known: dict[str, Any] = {}
        self._num_values = 0
        # Of a value that is not text.
        self._pieces: list[str] = []
        # A line end before and one after a value are not of it; the latter may turn out to be.
        self._at_start = False
        self._line_end = ""
        self._gained: list[str] = []
        self._step: Callable[[str], str] = self._in_name

    def push(self, text: str) -> str:
        while text and not self.ended:
            text = self._step(text)
        if self.ended:
            self.rest = text
        gained, self._gained = "".join(self._gained), []
        return gained

    def _in_name(self, text: str) -> str:
        text = self._read_word(text)
        if self._word.endswith(">") and not self.ended:
            self.name = self._word[:-1].strip()
            schema = self._parameters.get(self.name, _NO_SCHEMA)
            properties = schema.get("properties")
            self._known = properties if isinstance(properties, dict) else {}
            self._step = self._between_values
        return text

    def _between_values(self, text: str) -> str:
        before, marker, rest = self._between.push(text)
        is_other = bool(before.strip(WHITESPACE))
        if is_other or marker == CLOSER:
            self._gained.append("}" if self._num_values else NO_ARGUMENTS)
        if is_other:
            return self._give_up(before + (marker or self._between.finish()) + rest)
        if marker == CLOSER:
            self.ended = True
        elif marker is not None:
            self._word = ""
            self._step = self._in_key
        return rest

    def _in_key(self, text: str) -> str:
        text = self._read_word(text)
        if self._word.endswith(">") and not self.ended:
            key = self._word[:-1].strip()
            self._gained.append((", " if self._num_values else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            self._num_values += 1
            self._at_start, self._line_end, self._pieces = True, "", []
            self._step = self._in_json
            if is_text(self._known.get(key, _NO_SCHEMA)):
                self._gained.append('"')
                self._step = self._in_text
        return text

    def _read_word(self, text: str) -> str:
        """Up to the next >."""
        end = text.find(">") + 1
        self._word += text[: end or len(text)]
        if len(self._word) > MAX_NAME_CHARS:
            return self._give_up(text)
        return text[end:] if end else ""

    def _in_text(self, text: str) -> str:
        said, marker, rest = self._value_end.push(text)
        self._gained.append(json.dumps(self._without_line_ends(said), ensure_ascii=False)[1:-1])
        if marker is not None:
            self._gained.append('"')
            self._step = self._between_values
        return rest

    def _in_json(self, text: str) -> str:
        said, marker, rest = self._value_end.push(text)
        self._pieces.append(self._without_line_ends(said))
        if marker is not None:
            self._gained.append(_typed("".join(self._pieces)))
            self._step = self._between_values
        return rest

    def _without_line_ends(self, said: str) -> str:
        if self._at_start and said:
            self._at_start = False
            said = said.removeprefix("\n")
        said = self._line_end + said
        self._line_end = "\n" if said.endswith("\n") else ""
        return said.removesuffix("\n")

    def _give_up(self, text: str) -> str:
        self.ended = self.malformed = True
        return text


def write_arguments(arguments: str) -> str:
    """The JSON text of a call's arguments as the model would write them; what is no object, as it is."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(values, dict):
        return arguments
    return "".join(
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).join(around_value(key))
        for key, value in values.items()
    )


def around_value(key: str) -> tuple[str, str]:
    """What stands before and after a value."""
    return f"{_PARAMETER}{key}>\n", f"\n{_END_OF_VALUE}\n"


def is_text(schema: object) -> bool:
    """Whether values of a schema can only be texts, or nothing is known of them."""
    if not isinstance(schema, dict):
        return True
    if "enum" in schema or "const" in schema:
        accepted = schema.get("enum", [schema.get("const")])
        return isinstance(accepted, list) and all(isinstance(value, str) for value in accepted)
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    return not any(keyword in schema for keyword in ("anyOf", "oneOf", "allOf", "$ref", "properties", "items"))


def _typed(text: str) -> str:
    text = text.strip()
    try:
        # Stricter than the standard library, which takes NaN.
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return _WORDS.get(text) or json.dumps(text, ensure_ascii=False)
    return text
