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
_STATUS_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# Trailing metadata: the machine-readable code of an error of ours, and the request field at fault.
CODE_METADATA_KEY = "pageloom-code"
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
    ours, param = (None, None) if metadata is None else map(metadata.get, (CODE_METADATA_KEY, PARAM_METADATA_KEY))
    if error.code() is grpc.StatusCode.UNAVAILABLE and ours is None:
        # Not the scheduler's word but gRPC's, about a connection.
        return Unavailable(f"the scheduler cannot be reached: {message}")
    return _error_of(error.code(), message, None if param is None else str(param))


def error_from_number(number: int, message: str, param: str | None) -> PageloomError:
    """The typed error of a status that came as a number inside a message."""
    return _error_of(_STATUS_BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN), message, param)


def _error_of(code: grpc.StatusCode, message: str, param: str | None) -> PageloomError:
    for error_type, status in _GRPC_STATUS:
        if code is status:
            return error_type(message, param=param)
    return EngineError(message)
