"""The shapes of OpenAI's files and batches, which are also what is stored of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, assert_never

from pydantic import BaseModel, Field

from gateway.openai.metadata import Metadata
from pageloom.request_model import RequestModel

MAX_LIFETIME_S = 30 * 86_400

Ending = Literal["completed", "failed", "expired", "cancelled"]
EnteredStatus = Literal["in_progress", "finalizing", "cancelling"] | Ending
Status = Literal["validating"] | EnteredStatus
Purpose = Literal["batch", "batch_output"]
Lifetime = Annotated[int, Field(ge=1, le=MAX_LIFETIME_S)]


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class FileList(BaseModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class ExpiresAfter(RequestModel):
    anchor: Literal["created_at"]
    seconds: Lifetime


class CreateBatchRequest(RequestModel):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(BaseModel):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(BaseModel):
    cached_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """What a model has thought is among its output tokens, and not counted apart."""

    reasoning_tokens: int = 0


class BatchUsage(BaseModel):
    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = Field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = Field(default_factory=OutputTokensDetails)
    total_tokens: int = 0

    def add(self, answer: Any) -> None:
        """The usage of one answer, which chats and responses name differently."""
        usage = answer.get("usage") or {}
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        self.input_tokens += usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self.input_tokens_details.cached_tokens += details.get("cached_tokens") or 0
        self.output_tokens += usage.get("completion_tokens") or usage.get("output_tokens") or 0
        self.total_tokens = self.input_tokens + self.output_tokens


class BatchObject(BaseModel):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = Field(default_factory=RequestCounts)
    usage: BatchUsage = Field(default_factory=BatchUsage)
    metadata: dict[str, str] | None = None

    def enter(self, status: EnteredStatus, now: int) -> None:
        """A status, and the time at which it was entered."""
        self.status = status
        match status:
            case "in_progress":
                self.in_progress_at = now
            case "finalizing":
                self.finalizing_at = now
            case "completed":
                self.completed_at = now
            case "failed":
                self.failed_at = now
            case "expired":
                self.expired_at = now
            case "cancelling":
                self.cancelling_at = now
            case "cancelled":
                self.cancelled_at = now
            case _:
                assert_never(status)


class BatchList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredBatch(BaseModel):
    """A batch on disk. `output_id` and `error_id` are the files that its answers go to, which are shown once they are
    complete; `ending` is how it ends, known while it is finalized. `tenant` pays for it."""

    shown: BatchObject
    tenant: str
    output_id: str
    error_id: str
    output_lifetime_s: int | None
    ending: Ending | None = None
