"""The text of an answer -> what is said and what is called, piece by piece. Pure; linear in the text, and the
same however the text is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pageloom.parsing.call_readers import CallReader
from pageloom.parsing.marker_search import MarkerSearch
from pageloom.parsing.tool_formats import ToolFormat

# Of text that may become a call and may not. Longer is not one.
MAX_HELD_CHARS = 256 * 1024
# Of what stands before a call's brace: a name and a few markers.
MAX_HEADER_CHARS = 512


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What a call gained. Id and name come once, with its first delta. Of a custom tool's call `arguments` are its
    input, which is any text."""

    index: int
    id: str | None
    name: str | None
    arguments: str
    is_custom: bool = False


class ToolCallParser:
    """Text that is no call is content, as it is; white space around calls is not.

    A call counts as soon as its name is known, and is not taken back if the rest is cut off. What begins like
    one and turns out not to be is content. Without a marker, only the name of a known tool makes a call.
    With `single`, everything after the first call is left out, and `ended` says that it is complete.
    `parameters` are the schemas of the known tools' arguments, by their names.
    """

    def __init__(
        self,
        tool_format: ToolFormat,
        parameters: Mapping[str, Mapping[str, Any]],
        *,
        single: bool,
        hidden: frozenset[str],
    ) -> None:
        self._format = tool_format
        self._parameters = parameters
        self._single = single
        # Special tokens: they mark calls but are never content.
        self._hidden = hidden
        self._marker_search = MarkerSearch(tool_format.markers)
        self._section_search = self._end_search = self._marker_search
        self._content: list[str] = []
        self._deltas: list[ToolCallDelta] = []
        self._space: list[str] = []
        self._raw: list[str] = []
        self._num_raw_chars = 0
        self._header = ""
        self._marker = ""
        self._reader: CallReader | None = None
        self._early_arguments: list[str] = []
        self._num_in_section = 0
        self._named = False
        self.num_calls = 0
        self.ended = False
        self._step: Callable[[str], str] = self._at_start if tool_format.starts_with else self._in_content

    @property
    def in_call(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._named

    def push(self, text: str) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Content and deltas of calls that are certain."""
        while text and not self.ended:
            text = self._step(text)
        return self._take()

    def finish(self) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """What was held back, once the text has ended."""
        if self.ended:
            return self._take()
        self._say(self._marker_search.finish())
        self._keep(self._section_search.finish())
        if not self._named and not (self._num_in_section and self._is_leftover()):
            self._say_raw()
        if not self.num_calls:
            self._content += self._space
        return self._take()

    def _take(self) -> tuple[str, tuple[ToolCallDelta, ...]]:
        content, self._content = "".join(self._content), []
        deltas, self._deltas = tuple(self._deltas), []
        return content, deltas

    def _at_start(self, text: str) -> str:
        stripped = text.lstrip()
        self._space.append(text[: len(text) - len(stripped)])
        if not stripped:
            return ""
        self._step = self._in_content
        if stripped[0] in self._format.starts_with:
            self._open_section("")
        return stripped

    def _in_content(self, text: str) -> str:
        said, marker, rest = self._marker_search.push(text)
        self._say(said)
        if marker in self._format.begins:
            self._open_section(marker)
        elif marker is not None and marker not in self._hidden:
            self._say(marker)
        return rest

    def _open_section(self, marker: str) -> None:
        tool_format = self._format
        self._marker = marker
        self._num_in_section = 0
        markers = (tool_format.opener, *tool_format.begins, *tool_format.separators, *tool_format.ends)
        self._section_search = MarkerSearch(dict.fromkeys(markers))
        self._clear_raw()
        if marker == tool_format.opener:
            self._open_call(marker)
        else:
            self._keep(marker)
            self._step = self._in_section

    def _in_section(self, text: str) -> str:
        before, marker, rest = self._section_search.push(text)
        self._keep(before)
        self._header += before
        if len(self._header) > MAX_HEADER_CHARS or not self._format.header_may_be(self._header):
            return self._not_a_call((marker or self._section_search.finish()) + rest)
        if marker == self._format.opener:
            if not self._open_call(marker):
                return self._not_a_call(marker + rest)
        elif marker in self._format.ends:
            if not self._num_in_section:
                return self._not_a_call(marker + rest)
            self._step = self._in_content
        elif marker is not None:
            self._keep(marker)
            self._header = ""
        return rest

    def _open_call(self, opener: str) -> bool:
        self._reader = self._format.reader(self._header, self._parameters)
        if self._reader is None:
            return False
        self._keep(opener)
        self._named = False
        self._step = self._in_call
        return True

    def _in_call(self, text: str) -> str:
        reader = self._reader
        assert reader is not None
        arguments = reader.push(text)
        if self._named:
            self._deltas.append(ToolCallDelta(self.num_calls - 1, None, None, arguments))
        else:
            self._keep(text[: len(text) - len(reader.rest)])
            self._early_arguments.append(arguments)
            if not self._name_call(reader):
                return self._not_a_call(reader.rest)
        if not reader.ended:
            return ""
        self.ended = self._single
        self._named = False
        self._clear_raw()
        self._step = self._in_section
        return self._not_a_call(reader.rest) if reader.malformed else reader.rest

    def _name_call(self, reader: CallReader) -> bool:
        """False if this cannot become a call. Once its name is known, it is one."""
        if reader.begins_otherwise and not self._marker:
            # JSON that is content, most likely; it should not have to wait for its end.
            return False
        if reader.name is None:
            return not reader.ended and self._num_raw_chars <= MAX_HELD_CHARS
        if not reader.name or (not self._marker and reader.name not in self._parameters):
            return False
        arguments = "".join(self._early_arguments)
        self._deltas.append(ToolCallDelta(self.num_calls, self._format.new_id(), reader.name, arguments))
        self.num_calls += 1
        self._num_in_section += 1
        self._named = True
        self._space = []
        self._clear_raw()
        return True

    def _not_a_call(self, rest: str) -> str:
        """Goes on behind what is not a call: it is content, unless calls came before it in a section with an end,
        which such a leftover then reaches to."""
        if self._num_in_section and self._has_end():
            self._clear_raw()
            self._end_search = MarkerSearch(self._format.ends)
            self._step = self._in_leftover
        else:
            self._say_raw()
            self._num_in_section = 0
            self._step = self._in_content
        return rest

    def _has_end(self) -> bool:
        return bool(self._marker and self._marker != self._format.opener and self._format.ends)

    def _is_leftover(self) -> bool:
        """What stands after the last call of a section that the text's end has cut off."""
        return self._has_end() or self._format.is_filler(self._header)

    def _in_leftover(self, text: str) -> str:
        _, marker, rest = self._end_search.push(text)
        if marker is not None:
            self._step = self._in_content
        return rest

    def _say(self, text: str) -> None:
        said = text.rstrip()
        if said:
            self._content += [*self._space, said]
            self._space = []
        if len(said) < len(text):
            self._space.append(text[len(said) :])

    def _say_raw(self) -> None:
        for piece in self._raw:
            if piece not in self._hidden:
                self._say(piece)
        self._clear_raw()

    def _keep(self, text: str) -> None:
        self._raw.append(text)
        self._num_raw_chars += len(text)

    def _clear_raw(self) -> None:
        self._raw, self._num_raw_chars = [], 0
        self._header = ""
        self._early_arguments = []


def merged(deltas: tuple[ToolCallDelta, ...]) -> tuple[ToolCallDelta, ...]:
    """One delta for each call, in the order of the calls; empty ones are left out."""
    by_index: dict[int, ToolCallDelta] = {}
    for delta in deltas:
        known = by_index.get(delta.index)
        if known is not None:
            delta = replace(known, arguments=known.arguments + delta.arguments)
        by_index[delta.index] = delta
    return tuple(delta for delta in by_index.values() if delta.name is not None or delta.arguments)
