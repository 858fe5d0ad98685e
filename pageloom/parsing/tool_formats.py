"""How the model families write tool calls, and which of them a chat template asks for. Pure."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pageloom.parsing.call_readers import BareArguments, CallReader, NamedArguments
from pageloom.parsing.gemma_arguments import GemmaArguments
from pageloom.parsing.tagged_arguments import CLOSER, OPENER, TaggedArguments, write_arguments

_ALPHANUMERIC = string.ascii_letters + string.digits
# Between the calls of a section; models also wrap them in lists and Markdown fences.
_FILLER = re.compile(r"[\s,;\[\]`]*(?:json)?\s*")
_FILLER_CHARACTERS = " \t\r\n,;[]`"
MISTRAL_ID_LEN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls. Each of `begins` opens a section of calls, each of `ends` closes it; without an
    end the section lasts as long as calls follow each other. An answer whose first character is in
    `starts_with` may be a call without a marker.

    A call is `{...}` with members for name and arguments, or, where `header` is set, its group `name` stands
    before the braces and the arguments in them. `written` is a call as the model is told to write it: {name} and
    {arguments} stand for its parts, {id} for a number.
    """

    name: str
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    separators: tuple[str, ...] = ()
    starts_with: str = ""
    header: str | None = None
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    quote: str | None = None
    tagged: bool = False
    written: tuple[str, str, str]
    between: str = "\n"
    opening: str = ""
    closing: str = ""
    inner_markers: tuple[str, ...] = ()
    short_ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must not be dropped from the model's output as special tokens."""
        quotes = () if self.quote is None else (self.quote,)
        return (*self.begins, *self.ends, *self.separators, *self.inner_markers, *quotes)

    @property
    def opener(self) -> str:
        """Of a call."""
        return OPENER if self.tagged else "{"

    @property
    def has_mark(self) -> bool:
        """Whether the model is told to open calls by the first of `begins`."""
        return (self.opening or self.written[0]).startswith(self.begins[0])

    def new_id(self) -> str:
        if self.short_ids:
            return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(MISTRAL_ID_LEN))
        return f"call_{secrets.token_hex(12)}"

    def is_filler(self, text: str) -> bool:
        """Whether a text between calls says nothing."""
        return _FILLER.fullmatch(text) is not None

    def header_may_be(self, text: str) -> bool:
        """Whether a call may still follow this text, which has no opener."""
        if self.header is not None:
            return True
        return "json".startswith(text.strip(_FILLER_CHARACTERS))

    def reader(self, header: str, parameters: Mapping[str, Mapping[str, Any]]) -> CallReader | None:
        """Of the call whose opener follows this text; None if it is not one. `parameters` are the schemas of the known
        tools' arguments."""
        if self.tagged:
            return TaggedArguments(parameters) if self.is_filler(header) else None
        if self.is_filler(header):
            return NamedArguments(self.name_keys, self.argument_keys) if self.quote is None else None
        match = re.fullmatch(rf"[\s,;\[\]]*{self.header}\s*", header) if self.header is not None else None
        if match is None:
            return None
        name = match["name"]
        return BareArguments(name) if self.quote is None else GemmaArguments(name, self.quote)

    def write(self, calls: list[tuple[str, str]]) -> str:
        """Calls, each a name and the JSON text of its arguments, as the model would write them."""
        before, middle, after = self.written
        written = [
            before.replace("{id}", str(index)) + _quoted(name, before) + middle + self._written(arguments) + after
            for index, (name, arguments) in enumerate(calls)
        ]
        return self.opening + self.between.join(written) + self.closing

    def _written(self, arguments: str) -> str:
        return write_arguments(arguments) if self.tagged else arguments


def _quoted(name: str, before: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1] if before.endswith('"') else name


def _gemma_format(name: str, begin: str, end: str, *, quote: str) -> ToolFormat:
    return ToolFormat(
        name=name,
        begins=(begin,),
        ends=(end,),
        header=r"call:(?P<name>[\w.:-]+)",
        quote=quote,
        written=(f"{begin}call:", "", end),
        between="",
    )


HERMES = ToolFormat(
    name="hermes",
    begins=("<tool_call>",),
    ends=("</tool_call>",),
    written=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
)
QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    # Models leave out the first tag at times.
    begins=("<tool_call>", OPENER),
    ends=("</tool_call>",),
    tagged=True,
    written=(f"<tool_call>\n{OPENER}", ">\n", f"{CLOSER}\n</tool_call>"),
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    begins=("<|python_tag|>", "<|python_start|>"),
    separators=("<|python_end|>",),
    starts_with="{[",
    written=('{"name": "', '", "parameters": ', "}"),
    between="; ",
)
MISTRAL = ToolFormat(
    name="mistral",
    begins=("[TOOL_CALLS]",),
    header=r"(?P<name>[\w.:-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?",
    inner_markers=("[CALL_ID]", "[ARGS]"),
    written=('{"name": "', '", "arguments": ', "}"),
    opening="[TOOL_CALLS][",
    between=", ",
    closing="]",
    short_ids=True,
)
GEMMA = _gemma_format("gemma", "<|tool_call>", "<tool_call|>", quote='<|"|>')
FUNCTION_GEMMA = _gemma_format("functiongemma", "<start_function_call>", "<end_function_call>", quote="<escape>")
COHERE = ToolFormat(
    name="cohere",
    begins=("<|START_ACTION|>",),
    ends=("<|END_ACTION|>",),
    name_keys=("tool_name", "name"),
    argument_keys=("parameters", "arguments"),
    opening="<|START_ACTION|>[\n    ",
    written=('{"tool_call_id": "{id}", "tool_name": "', '", "parameters": ', "}"),
    between=",\n    ",
    closing="\n]<|END_ACTION|>",
)
JAMBA = ToolFormat(
    name="jamba",
    begins=("<tool_calls>",),
    ends=("</tool_calls>",),
    opening="<tool_calls>[\n",
    written=('{"name": "', '", "arguments": ', "}"),
    between=",\n",
    closing="\n]</tool_calls>",
)
DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    begins=("<｜tool▁calls▁begin｜>",),
    ends=("<｜tool▁calls▁end｜>",),
    separators=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    header=r"(?:function)?<｜tool▁sep｜>(?P<name>[\w.:-]+)\s*```json",
    inner_markers=("<｜tool▁sep｜>",),
    opening="<｜tool▁calls▁begin｜>",
    written=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
    between="\n",
    closing="<｜tool▁calls▁end｜>",
)
# What a model may write whose template shows no calls: it is told Hermes' way.
GENERIC_JSON = replace(HERMES, name="json", starts_with="{[`")
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        HERMES,
        QWEN3_CODER,
        LLAMA3_JSON,
        MISTRAL,
        GEMMA,
        FUNCTION_GEMMA,
        COHERE,
        JAMBA,
        DEEPSEEK_V3,
        GENERIC_JSON,
    )
}

# In order: the first whose text the template contains.
_SIGNS: tuple[tuple[Callable[[str], bool], ToolFormat], ...] = (
    (lambda source: "<|tool_call>call:" in source, GEMMA),
    (lambda source: "<start_function_call>" in source, FUNCTION_GEMMA),
    (lambda source: "[TOOL_CALLS]" in source, MISTRAL),
    (lambda source: "<|START_ACTION|>" in source, COHERE),
    (lambda source: "<｜tool▁calls▁begin｜>" in source, DEEPSEEK_V3),
    (lambda source: "<tool_calls>" in source, JAMBA),
    (lambda source: OPENER in source and "<parameter=" in source, QWEN3_CODER),
    (lambda source: "<tool_call>" in source and OPENER not in source, HERMES),
    (lambda source: "<|python_tag|>" in source or '"parameters": dictionary of argument name' in source, LLAMA3_JSON),
)


def detect_tool_format(template_source: str) -> ToolFormat:
    """The way that a chat template writes calls; generic JSON if it shows none that is known."""
    for applies, tool_format in _SIGNS:
        if applies(template_source):
            return tool_format
    return GENERIC_JSON
