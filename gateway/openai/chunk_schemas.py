"""What the chunks of a stream look like, for /openapi.json: `sse.py` makes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from gateway.openai.answer_schemas import ChatLogprobs, CompletionLogprobs, Finish, Usage
from pageloom.timeline import Timeline


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str


class CustomDelta(BaseModel):
    name: str | None = None
    input: str


class ToolCallChunk(BaseModel):
    """`id`, `type` and the name come with the first delta of a call."""

    index: int
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallChunk] | None = None


class ChunkChoice(BaseModel):
    """`finish_reason` is null but in the last chunk of a choice, which has `stop_reason` and `timeline` too."""

    index: int
    finish_reason: Finish | None
    stop_reason: str | int | None = None
    timeline: Timeline | None = None
    token_ids: list[int] | None = None


class ChatChunkChoice(ChunkChoice):
    delta: ChatDelta
    logprobs: ChatLogprobs | None


class CompletionChunkChoice(ChunkChoice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] | None = None


class ChatCompletionChunk(BaseModel):
    """With `stream_options.include_usage` each chunk has `usage`, and one without choices is the last."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
