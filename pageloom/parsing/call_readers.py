"""One tool call as a model writes it -> its name and the JSON text of its arguments, piece by piece. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pageloom.parsing.json_span import WHITESPACE, ContainerSpan, StringSpan, string_text

NO_ARGUMENTS = "{}"
_IDLE_KEYS = ("id", "type", "tool_call_id")


class CallReader(Protocol):
    """Reads from behind the call's opening brace, or what stands for it. Once `ended` is true, `rest` is what follows
    the call; with `malformed` it is what cannot be part of one. `begins_otherwise` if members come before the name that
    calls do not have."""

    name: str | None
    begins_otherwise: bool
    ended: bool
    malformed: bool
    rest: str

    def push(self, text: str) -> str:
        """The arguments' text that was gained."""
        ...


class BareArguments:
    """The object is the arguments; the name stood before it."""

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self.begins_otherwise = False
        self.ended = self.malformed = False
        self.rest = ""
        self._span = ContainerSpan()
        self._opening = "{"

    def push(self, text: str) -> str:
        opening, self._opening = self._opening, ""
        end = self._span.end(text, 0)
        if end < 0:
            return opening + text
        self.ended, self.rest = True, text[end:]
        return opening + text[:end]


class NamedArguments:
    """The object has a member with the name and one with the arguments, in any order; others are skipped.
    Arguments may also be an object's text in a string."""

    def __init__(self, name_keys: tuple[str, ...], argument_keys: tuple[str, ...]) -> None:
        self.name: str | None = None
        self.begins_otherwise = False
        self.ended = self.malformed = False
        self.rest = ""
        self._name_keys = name_keys
        self._argument_keys = argument_keys
        self._key = ""
        self._string: list[str] = []
        self._string_span = StringSpan()
        self._span = ContainerSpan()
        self._has_arguments = False
        self._gained: list[str] = []
        self._step: Callable[[str, int], int] = self._between

    def push(self, text: str) -> str:
        self._gained = []
        position = 0
        while position < len(text) and not self.ended:
            position = self._step(text, position)
        if self.ended:
            self.rest = text[position:]
        return "".join(self._gained)

    def _between(self, text: str, position: int) -> int:
        character = text[position]
        if character == '"':
            self._open_string(self._in_key)
        elif character == "}":
            self.ended = True
            if not self._has_arguments:
                self._gained.append(NO_ARGUMENTS)
        elif character not in WHITESPACE + ",":
            return self._give_up(position)
        return position + 1

    def _in_key(self, text: str, position: int) -> int:
        end = self._read_string(text, position)
        if end < 0:
            return len(text)
        self._key = string_text("".join(self._string))
        known = (*self._name_keys, *self._argument_keys, *_IDLE_KEYS)
        self.begins_otherwise = self.begins_otherwise or (self.name is None and self._key not in known)
        self._step = self._colon
        return end

    def _colon(self, text: str, position: int) -> int:
        character = text[position]
        if character == ":":
            self._step = self._value
        elif character not in WHITESPACE:
            return self._give_up(position)
        return position + 1

    def _value(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            return position + 1
        if character == '"':
            self._open_string(self._in_string)
            return position + 1
        if character not in "{[":
            self._step = self._in_scalar
            return position
        self._span = ContainerSpan()
        self._step = self._in_container
        if self._is_arguments():
            self._gained.append(character)
        return position + 1

    def _in_scalar(self, text: str, position: int) -> int:
        """A number, true, false or null: as arguments it means that there are none."""
        if text[position] in WHITESPACE + ",}":
            self._step = self._between
            return position
        return self._give_up(position) if text[position] in '{["' else position + 1

    def _in_container(self, text: str, position: int) -> int:
        end = self._span.end(text, position)
        following = len(text) if end < 0 else end
        if self._is_arguments():
            self._gained.append(text[position:following])
        if end >= 0:
            self._close_value()
        return following

    def _in_string(self, text: str, position: int) -> int:
        end = self._read_string(text, position)
        if end < 0:
            return len(text)
        value = string_text("".join(self._string))
        if self._key in self._name_keys and self.name is None:
            self.name = value
        elif self._is_arguments():
            self._gained.append(value.strip() or NO_ARGUMENTS)
        self._close_value()
        return end

    def _close_value(self) -> None:
        self._has_arguments = self._has_arguments or self._key in self._argument_keys
        self._step = self._between

    def _is_arguments(self) -> bool:
        return self._key in self._argument_keys and not self._has_arguments

    def _open_string(self, step: Callable[[str, int], int]) -> None:
        self._string = []
        self._string_span = StringSpan()
        self._step = step

    def _read_string(self, text: str, position: int) -> int:
        end = self._string_span.end(text, position)
        self._string.append(text[position:] if end < 0 else text[position : end - 1])
        return end

    def _give_up(self, position: int) -> int:
        self.ended = self.malformed = True
        return position
