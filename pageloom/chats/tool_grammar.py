"""What an answer with tools may look like -> the text for `SamplingParams.grammar`: the calls that must come, calls
whose arguments follow their schema, and thinking before either. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pageloom.chats.schemas import Tool
from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle
from pageloom.grammars.lark_text import lark_literals, lark_string
from pageloom.parsing.reasoning import ReasoningFormat
from pageloom.parsing.tool_formats import ToolFormat

# Small models would go on until their context ends.
MAX_FORCED_CALLS = 16
_CALL_NUMBER = "/[0-9]{1,2}/"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool, the field of the request that it stands in, and how its arguments are written."""

    field: str
    tool: Tool
    style: JsonStyle

    @property
    def arguments(self) -> str:
        """The schema of its arguments, for behind %json. If it need not be strict and cannot be followed, they are any
        object. Raises InvalidRequest."""
        function = self.tool.function
        param = f"{self.field}.function.parameters"
        schema = _NO_PARAMETERS if function.parameters is None else function.parameters
        if schema.get("type", "object") != "object":
            raise InvalidRequest(f"{param} must be the schema of an object", param=param)
        try:
            return grammars.inline_json_schema({**schema, "type": "object"}, param=param, style=self.style)
        except InvalidRequest:
            if function.strict:
                raise
            return grammars.inline_json_schema({"type": "object"}, param=param, style=self.style)


class AnswerGrammar:
    """Writes Lark for one request. `special_tokens` are the model's, with their ids; in a grammar they are not their
    letters. `may_think` are the marks of thinking; `thinks` if the answer begins inside."""

    def __init__(self, special_tokens: Mapping[str, int], may_think: ReasoningFormat | None, *, thinks: bool) -> None:
        self._special_tokens = special_tokens
        self._thinking = "" if may_think is None else self._thought(may_think, thinks)

    def calls(self, tool_format: ToolFormat, tools: Sequence[OfferedTool], *, single: bool) -> str:
        """Nothing but calls, at least one. Raises InvalidRequest."""
        return self._lark("calls", self._calls(tool_format, tools, single=single))

    def calls_or_json(self, tool_format: ToolFormat, tools: Sequence[OfferedTool], schema: str, *, single: bool) -> str:
        """Calls, or JSON of a schema. Raises InvalidRequest."""
        calls = self._calls(
            tool_format, tools, single=single, mark="" if tool_format.has_mark else self._mark(tool_format)
        )
        return self._lark("calls | answer", [*calls, f"answer: %json {schema}"])

    def json(self, schema: str) -> str:
        """JSON of a schema. Raises InvalidRequest."""
        return self._lark("answer", [f"answer: %json {schema}"])

    def text_with_calls(self, tool_format: ToolFormat, tools: Sequence[OfferedTool], *, single: bool) -> str:
        """Any text, in which calls are as they should be. Raises InvalidRequest."""
        if not tool_format.has_mark:
            # Without a mark, an answer that begins like a call is one.
            other = rf"OTHER: /[^\s{re.escape(tool_format.starts_with)}](?s:.*)/"
            return self._lark("(calls | OTHER)?", [*self._calls(tool_format, tools, single=single), other])
        begin = tool_format.begins[0]
        if begin in self._special_tokens:
            text = [f"text: TEXT {self._literals(begin)}", "TEXT: /(?s:.*)/"]
        else:
            text = [f"text[lazy]: TEXT {lark_string(begin)}", "TEXT: /(?s:.*)/"]
        rules = self._calls(tool_format, tools, single=single or not tool_format.opening, without=begin)
        return self._lark("(text calls)* TEXT", [*text, *rules])

    def _calls(
        self, tool_format: ToolFormat, tools: Sequence[OfferedTool], *, single: bool, mark: str = "", without: str = ""
    ) -> list[str]:
        """Rules of a section of calls, that come with one more mark before it or without the one that it has."""
        before, middle, after = tool_format.written
        opening = mark + tool_format.opening
        if opening:
            opening = opening.removeprefix(without)
        else:
            before = before.removeprefix(without)
        more = "" if single else f" ({self._literals(tool_format.between)} call){{0,{MAX_FORCED_CALLS - 1}}}"
        rules = [
            f"calls: {self._literals(opening)} call{more} {self._literals(tool_format.closing)}",
            "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
        ]
        for index, each in enumerate(tools):
            begin = f" {_CALL_NUMBER} ".join(
                map(self._literals, (before + each.tool.function.name + middle).split("{id}"))
            )
            rules.append(f"call_{index}: {begin} %json {each.arguments} {self._literals(after)}")
        return rules

    def _mark(self, tool_format: ToolFormat) -> str:
        """That opens calls where they need one to be told from JSON: if possible a token that the model knows."""
        known = (mark for mark in tool_format.begins if mark in self._special_tokens)
        return next(known, tool_format.begins[0])

    def _thought(self, marks: ReasoningFormat, thinks: bool) -> str:
        if any(token in marks.end for token in self._special_tokens):
            thought = f"thought: THOUGHT {self._literals(marks.end)}\nTHOUGHT: /(?s:.*)/"
        else:
            thought = f"thought[lazy]: /(?s:.*)/ {lark_string(marks.end)}"
        thinking = "thought" if thinks else f"({self._literals(marks.begin)} thought)?"
        return f"thinking: {thinking} SPACE\nSPACE: /[ \\n]{{0,{grammars.MAX_SPACES}}}/\n{thought}"

    def _lark(self, start: str, rules: Sequence[str]) -> str:
        if not self._thinking:
            return grammars.lark("\n".join([f"start: {start}", *rules]), param="tools")
        return grammars.lark("\n".join([f"start: thinking ({start})", *rules, self._thinking]), param="tools")

    def _literals(self, text: str) -> str:
        return lark_literals(text, self._special_tokens)
