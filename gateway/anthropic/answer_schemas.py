"""What answers of /v1/messages look like, for /openapi.json: `encoder.py` makes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.anthropic.errors import AnthropicErrorDetail


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(BaseModel):
    """A call that was cut off has the one member `incomplete_json`, its text."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnsweredBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(BaseModel):
    """The cache is known at the end."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class MessageObject(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnsweredBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    input_tokens: int


class MessageStartEvent(BaseModel):
    type: Literal["message_start"]
    message: MessageObject


class BlockStartEvent(BaseModel):
    type: Literal["content_block_start"]
    index: int
    content_block: AnsweredBlock


class TextDelta(BaseModel):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(BaseModel):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDeltaEvent(BaseModel):
    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, Field(discriminator="type")]


class BlockStopEvent(BaseModel):
    type: Literal["content_block_stop"]
    index: int


class MessageStop(BaseModel):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDeltaEvent(BaseModel):
    type: Literal["message_delta"]
    delta: MessageStop
    usage: MessageUsage


class MessageStopEvent(BaseModel):
    type: Literal["message_stop"]


class MessageErrorEvent(BaseModel):
    """The last one, instead of the others."""

    type: Literal["error"]
    error: AnthropicErrorDetail


MessageStreamEvent = Annotated[
    MessageStartEvent
    | BlockStartEvent
    | BlockDeltaEvent
    | BlockStopEvent
    | MessageDeltaEvent
    | MessageStopEvent
    | MessageErrorEvent,
    Field(discriminator="type"),
]
