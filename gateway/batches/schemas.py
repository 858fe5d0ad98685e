"""The shapes of OpenAI's files and batches, which are also what is stored of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.request_model import RequestModel

MAX_LIFETIME_S = 30 * 86_400
MAX_METADATA_ITEMS, MAX_METADATA_KEY_CHARS, MAX_METADATA_CHARS = 16, 64, 512

Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]  # fmt: skip
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
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARS)],
                Annotated[str, Field(max_length=MAX_METADATA_CHARS)],
            ],
            Field(max_length=MAX_METADATA_ITEMS),
        ]
        | None
    ) = None
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
    metadata: dict[str, str] | None = None


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
    ending: Literal["completed", "failed", "expired", "cancelled"] | None = None
