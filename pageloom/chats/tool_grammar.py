"""What an answer with tools may look like -> the text for `SamplingParams.grammar`: the calls that must come, calls
whose arguments follow their schema, and thinking before either. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pageloom.chats.offered_tools import OfferedTool
from pageloom.chats.tagged_schema import tagged_arguments
from pageloom.errors import InvalidRequest
from pageloom.grammars import grammar as grammars
from pageloom.grammars.grammar import JsonStyle
from pageloom.grammars.lark_text import lark_literals, lark_string
from pageloom.parsing.reasoning import ReasoningFormat
from pageloom.parsing.tagged_arguments import around_value
from pageloom.parsing.tool_formats import ToolFormat

# Small models would go on until their context ends.
MAX_FORCED_CALLS = 16
_CALL_NUMBER = "/[0-9]{1,2}/"


class AnswerGrammar:
    """Writes Lark for one request. `special_tokens` are the model's, with their ids; in a grammar they are not their
    letters. `may_think` are the marks of thinking; `thinks` if the answer begins inside. `style` is that of
    arguments."""

    def __init__(
        self, special_tokens: Mapping[str, int], may_think: ReasoningFormat | None, style: JsonStyle, *, thinks: bool
    ) -> None:
        self._special_tokens = special_tokens
        # A function has no parameters but those that it lists, and small models make some up.
        self._style = replace(style, closed_objects=True)
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
        for index, tool in enumerate(tools):
            begin = f" {_CALL_NUMBER} ".join(map(self._literals, (before + tool.name + middle).split("{id}")))
            arguments, more_rules = (
                self._tagged(tool, index) if tool_format.tagged else (f"%json {_arguments(tool, self._style)}", [])
            )
            rules += [f"call_{index}: {begin} {arguments} {self._literals(after)}", *more_rules]
        return rules

    def _tagged(self, tool: OfferedTool, index: int) -> tuple[str, list[str]]:
        """Arguments with a tag for each, in the order of the schema, and the rules that they need."""
        values, rules = [], []
        for number, argument in enumerate(tagged_arguments(tool, self._style)):
            name = f"value_{index}_{number}"
            begin, end = map(self._literals, around_value(argument.name))
            if argument.texts is not None:
                rules.append(f"{name}: {begin} ({' | '.join(map(self._literals, argument.texts))}) {end}")
            elif argument.schema:
                rules.append(f"{name}: {begin} %json {argument.schema} {end}")
            else:
                rules += [f"{name}: {begin} text_{name}", f"text_{name}[lazy]: /(?s:.*)/ {end}"]
            values.append(name if argument.is_required else f"{name}?")
        return " ".join(values), rules

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


def _arguments(tool: OfferedTool, style: JsonStyle) -> str:
    """The schema of its arguments, for behind %json. If it need not be strict and cannot be followed, they are any
    object. Raises InvalidRequest."""
    schema, param = tool.parameters, tool.schema_field
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{param} must be the schema of an object", param=param)
    try:
        return grammars.inline_json_schema({**schema, "type": "object"}, param=param, style=style)
    except InvalidRequest:
        if tool.strict:
            raise
        return grammars.inline_json_schema({"type": "object"}, param=param, style=style)
