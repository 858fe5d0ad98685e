"""The OpenAI request and response shapes, with vLLM's extra request fields. Types only: what values mean is decided in
`requests/translate.py`, how large they may be in `requests/limits.py`, sampling parameters' ranges in
`SamplingParams`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.openai.optional_keys import IF_ANY
from gateway.openai.tool_schemas import AssistantMessage
from pageloom.chats.schemas import ChatOptions, Messages, TemplateOptions
from pageloom.grammars.schemas import FormOptions
from pageloom.request_model import RequestModel
from pageloom.timeline import Timeline

MAX_TOP_LOGPROBS = 20
MAX_CACHE_SALT_CHARS = 128
# It becomes part of the answer's id.
REQUEST_ID_PATTERN = r"^[!-~]{1,128}$"

# fail_fast: a list of a million wrong items must not become a million errors.
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
NonEmptyString = Annotated[str, Field(min_length=1)]
NonEmptyStrings = Annotated[list[NonEmptyString], Field(fail_fast=True)]
# What several requests have.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
CacheSalt = Annotated[str, Field(max_length=MAX_CACHE_SALT_CHARS)]


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(FormOptions):
    """What chat and text completions have in common. null means the default everywhere."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Seed | None = None
    stop: NonEmptyString | NonEmptyStrings | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: NonEmptyStrings | None = None
    # An empty list would allow nothing.
    allowed_token_ids: Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN)] | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    include_timeline: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    # Without effect on an answer, whatever they say.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None


class CompletionRequest(GenerationRequest):
    prompt: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class ChatCompletionRequest(GenerationRequest, ChatOptions):
    max_completion_tokens: int | None = None
    echo: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class TokenizeRequest(TemplateOptions):
    """Either `prompt` or `messages`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: TokenIds


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
    finish_reason: Literal["stop", "length", "tool_calls"]
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
