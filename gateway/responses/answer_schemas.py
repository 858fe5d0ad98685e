"""What answers of /v1/responses look like, for /openapi.json: `response_object.py`, `output_items.py` and `encoder.py`
make them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.openai.answer_schemas import ChatTokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)]
    logprobs: list[ChatTokenLogprob]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(BaseModel):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class FunctionCallItem(BaseModel):
    """`arguments` is JSON text as the model wrote it: cut short if `status` is incomplete."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomCallItem(BaseModel):
    type: Literal["custom_tool_call"]
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


class ReasoningItem(BaseModel):
    type: Literal["reasoning"]
    id: str
    summary: Annotated[list[Any], Field(max_length=0)]
    content: list[ReasoningText]
    status: ItemStatus


OutputItem = Annotated[OutputMessage | FunctionCallItem | CustomCallItem | ReasoningItem, Field(discriminator="type")]


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseError(BaseModel):
    code: str
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseReasoning(BaseModel):
    effort: str | None
    summary: str | None


class ResponseObject(BaseModel):
    """What was asked for, how far it is, and what came out."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ResponseReasoning
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled", "auto"]
    user: str | None


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(BaseModel):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Event(BaseModel):
    sequence_number: int


class ResponseEvent(_Event):
    """The last one is completed, incomplete or failed; a response that was cancelled ends with incomplete."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class OutputItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _ItemEvent(_Event):
    item_id: str
    output_index: int


class _PartEvent(_ItemEvent):
    content_index: int


class ContentPartEvent(_PartEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDeltaEvent(_PartEvent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[ChatTokenLogprob]


class TextDoneEvent(_PartEvent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningDeltaEvent(_PartEvent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDoneEvent(_PartEvent):
    type: Literal["response.reasoning_text.done"]
    text: str


class CallDeltaEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDoneEvent(_ItemEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class InputDoneEvent(_ItemEvent):
    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(_Event):
    """Comes before response.failed."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None


ResponseStreamEvent = Annotated[
    ResponseEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | CallDeltaEvent
    | ArgumentsDoneEvent
    | InputDoneEvent
    | ErrorEvent,
    Field(discriminator="type"),
]
