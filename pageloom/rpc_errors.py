"""The one mapping between the error tree and gRPC status, both ways."""

from __future__ import annotations

from typing import cast

import grpc

from pageloom.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    DuplicateRequest,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PageloomError,
    Unavailable,
)

# The most specific class comes first: lookups take the first match.
_GRPC_STATUS: tuple[tuple[type[PageloomError], grpc.StatusCode], ...] = (
    (ContextLengthExceeded, grpc.StatusCode.OUT_OF_RANGE),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (ModelNotFound, grpc.StatusCode.NOT_FOUND),
    (DuplicateRequest, grpc.StatusCode.ALREADY_EXISTS),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (EngineError, grpc.StatusCode.INTERNAL),
)

# Trailing metadata that carries the request field at fault.
PARAM_METADATA_KEY = "pageloom-param"


def to_grpc_status(error: PageloomError) -> grpc.StatusCode:
    """The gRPC status of an error; INTERNAL for one that has no business on the wire."""
    for error_type, status in _GRPC_STATUS:
        if isinstance(error, error_type):
            return status
    return grpc.StatusCode.INTERNAL


def from_grpc_error(error: grpc.aio.AioRpcError) -> PageloomError:
    """The typed error that a failed call stands for."""
    message = error.details() or f"the call ended with {error.code().name}"
    # The stubs give the synchronous type; grpc.aio returns its own mapping.
    metadata = cast("grpc.aio.Metadata | None", error.trailing_metadata())
    param = None if metadata is None else metadata.get(PARAM_METADATA_KEY)
    for error_type, status in _GRPC_STATUS:
        if error.code() is status:
            return error_type(message, param=None if param is None else str(param))
    return EngineError(message)
