"""The text of a chat answer -> its parts: thinking, content, tool calls. Pure; one parser for each choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pageloom.parsing.custom_input import CustomInputs
from pageloom.parsing.reasoning import ReasoningFormat, ReasoningSplitter
from pageloom.parsing.tool_calls import ToolCallDelta, ToolCallParser, merged
from pageloom.parsing.tool_formats import ToolFormat

# What is left of a piece is copied at each step, so a long one is taken in several.
_PIECE_CHARS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """What the parts gained."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    num_reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """How to read the answers to one request. `marker_token_ids` are special tokens whose text marks parts;
    `hidden_markers` are their texts."""

    reasoning: ReasoningFormat | None = None
    starts_in_reasoning: bool = False
    include_reasoning: bool = True
    tools: ToolFormat | None = None
    # The schemas of the arguments of the tools that may be called, by their names.
    tool_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    custom_tools: frozenset[str] = frozenset()
    single_call: bool = False
    marker_token_ids: frozenset[int] = frozenset()
    hidden_markers: frozenset[str] = frozenset()

    def new_parser(self) -> MessageParser:
        return MessageParser(self)


class MessageParser:
    """`ended` once nothing more is wanted of the text; `num_calls` so far."""

    def __init__(self, message_format: MessageFormat) -> None:
        self._include_reasoning = message_format.include_reasoning
        self._splitter: ReasoningSplitter | None = None
        if message_format.reasoning is not None:
            self._splitter = ReasoningSplitter(message_format.reasoning, is_open=message_format.starts_in_reasoning)
        self._calls: ToolCallParser | None = None
        self._custom_inputs = CustomInputs(message_format.custom_tools)
        if message_format.tools is not None:
            self._calls = ToolCallParser(
                message_format.tools,
                message_format.tool_parameters,
                single=message_format.single_call,
                hidden=message_format.hidden_markers,
            )

    @property
    def num_calls(self) -> int:
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def in_call(self) -> bool:
        """Whether the text ends within a call."""
        return self._calls is not None and self._calls.in_call

    @property
    def ended(self) -> bool:
        return self._calls is not None and self._calls.ended

    def push(self, *texts: str) -> MessageDelta:
        """Takes the text of one or several tokens, each apart: those from the opening mark to the closing one are
        the thinking's, also if their text is not shown or not known yet."""
        parts: list[tuple[str, str, tuple[ToolCallDelta, ...]]] = []
        num_reasoning_tokens = 0
        for text in texts:
            was_thinking = self._is_thinking
            parts += self._parts(text)
            num_reasoning_tokens += was_thinking or self._is_thinking
        return MessageDelta(
            num_reasoning_tokens=num_reasoning_tokens,
            content="".join(content for _, content, _ in parts),
            reasoning="".join(reasoning for reasoning, _, _ in parts) if self._include_reasoning else "",
            tool_calls=merged(tuple(delta for _, _, deltas in parts for delta in deltas)),
        )

    def finish(self) -> MessageDelta:
        """What was held back, once the text has ended."""
        reasoning, answer = ("", "") if self._splitter is None else self._splitter.finish()
        content, deltas = self._called(answer)
        if self._calls is not None:
            rest, last_deltas = self._calls.finish()
            content += rest
            deltas = (*deltas, *self._custom_inputs.read(last_deltas), *self._custom_inputs.finish())
        return MessageDelta(
            content=content, reasoning=reasoning if self._include_reasoning else "", tool_calls=merged(deltas)
        )

    @property
    def _is_thinking(self) -> bool:
        return self._splitter is not None and self._splitter.is_inside

    def _parts(self, text: str) -> Iterator[tuple[str, str, tuple[ToolCallDelta, ...]]]:
        for start in range(0, len(text), _PIECE_CHARS):
            piece = text[start : start + _PIECE_CHARS]
            reasoning, answer = ("", piece) if self._splitter is None else self._splitter.push(piece)
            yield reasoning, *self._called(answer)

    def _called(self, answer: str) -> tuple[str, tuple[ToolCallDelta, ...]]:
        if self._calls is None:
            return answer, ()
        content, deltas = self._calls.push(answer)
        return content, tuple(self._custom_inputs.read(deltas))
