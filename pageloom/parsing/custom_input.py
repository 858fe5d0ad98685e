"""Calls of custom tools: what the model writes is a function's arguments, `{"input": "text"}`, and what the client gets
is the text. Pure; linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pageloom.parsing.json_span import StringSpan, string_text
from pageloom.parsing.tool_calls import ToolCallDelta

# A function's only argument.
INPUT = "input"
_BEGINNING = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"', re.DOTALL)
# Longer is not what the model was told to write.
_MAX_BEGINNING_CHARS = 256
# Characters and escapes that are whole: of a character beyond 16 bits both halves.
_WHOLE = re.compile(
    r"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*", re.DOTALL
)
_MAX_ESCAPE_CHARS = 12


class CustomInputs:
    """Of one answer: makes deltas of calls of the tools with these names to deltas of their inputs."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._open: tuple[int, _InputText] | None = None

    def read(self, deltas: Sequence[ToolCallDelta]) -> Iterator[ToolCallDelta]:
        for delta in deltas:
            if delta.name is not None:
                yield from self.finish()
                if delta.name in self._names:
                    self._open = delta.index, _InputText()
            if self._open is None:
                yield delta
            else:
                _, text = self._open
                yield replace(delta, arguments=text.push(delta.arguments), is_custom=True)

    def finish(self) -> Iterator[ToolCallDelta]:
        """The call that was read last has ended."""
        if self._open is not None:
            index, text = self._open
            self._open = None
            yield ToolCallDelta(index, None, None, text.finish(), is_custom=True)


class _InputText:
    """The text of the first member. Arguments of another form are the input as they are."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = self._ended = self._as_it_is = False
        self._span = StringSpan()

    def push(self, arguments: str) -> str:
        if self._ended:
            return ""
        if self._as_it_is:
            return arguments
        if self._begun:
            return self._gain(arguments)
        self._held += arguments
        # Where it has to end is the same however the text is cut.
        beginning = _BEGINNING.match(self._held[:_MAX_BEGINNING_CHARS])
        if beginning is not None:
            rest, self._held = self._held[beginning.end() :], ""
            self._begun = True
            return self._gain(rest)
        self._as_it_is = len(self._held) >= _MAX_BEGINNING_CHARS
        return self.finish() if self._as_it_is else ""

    def finish(self) -> str:
        held, self._held = self._held, ""
        return string_text(held) if self._begun else held

    def _gain(self, raw: str) -> str:
        end = self._span.end(raw, 0)
        self._ended = end >= 0
        known = self._held + (raw[: end - 1] if self._ended else raw)
        whole = _WHOLE.match(known)
        certain = 0 if whole is None else whole.end()
        if self._ended or len(known) - certain >= _MAX_ESCAPE_CHARS:
            certain = len(known)
        self._held = known[certain:]
        return string_text(known[:certain])
