"""What answers look like in OpenAI's shapes, with vLLM's extra fields. Types only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel

from gateway.openai.optional_keys import IF_ANY
from gateway.openai.tool_schemas import AssistantMessage
from pageloom.timeline import Timeline

# Why a choice ended, as the caller is told.
Finish = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    """`completion_tokens_details` comes with models that think."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: Annotated[CompletionTokensDetails | None, IF_ANY] = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob]


class AnsweredChoice(BaseModel):
    """`timeline` and `token_ids` come if the request asked for them."""

    index: int
    finish_reason: Finish
    stop_reason: str | int | None = None
    timeline: Annotated[Timeline | None, IF_ANY] = None
    token_ids: Annotated[list[int] | None, IF_ANY] = None


class ChatChoice(AnsweredChoice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None


class PromptTokenLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


# By token id; null for the first token of the prompt.
PromptLogprobsAnswer = Annotated[list[dict[str, PromptTokenLogprob] | None] | None, IF_ANY]


class ChatCompletionResponse(BaseModel):
    """`prompt_token_ids` come with the choices' `token_ids`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: Annotated[list[int] | None, IF_ANY] = None
    prompt_logprobs: PromptLogprobsAnswer = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnsweredChoice):
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_token_ids: Annotated[list[int] | None, IF_ANY] = None
    prompt_logprobs: PromptLogprobsAnswer = None


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["pageloom"] = "pageloom"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    prompt: str


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail
