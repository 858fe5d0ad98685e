"""The error tree. The type says whose fault it is; `rpc_errors.py` maps it to gRPC status, the gateway to HTTP.

PageloomError
├── RequestError                 the caller can fix it by changing the request
│   ├── InvalidRequest           a field is wrong; `param` names it
│   │   └── ContextLengthExceeded
│   ├── ModelNotFound
│   └── DuplicateRequest         the request_id is already running
├── ServiceError                 the caller may try again later
│   ├── Overloaded               the queue is full
│   ├── Unavailable              no worker, scheduler unreachable, or draining
│   └── DeadlineExceeded
├── EngineError                  our fault; nothing the caller can do
└── StartupError                 a process cannot start; one line, exit code 1
    ├── InvalidConfig            a flag or its environment twin is wrong
    └── ModelLoadError           files are missing, truncated or not supported
"""

from __future__ import annotations

from typing import Self


class PageloomError(Exception):
    """Base of all errors that Pageloom raises on purpose.

    `message` is for people. `code` is the machine-readable code of OpenAI's error body and
    `param` the request field at fault; either may be None.
    """

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(PageloomError):
    """The caller can fix it by changing the request."""


class InvalidRequest(RequestError):
    """A field of the request is wrong; `param` names it."""

    code = "invalid_value"

    def for_caller(self, grammar_field: str) -> Self:
        """What the engine says of a request, naming its field: for the grammar that which the caller has sent, if
        `grammar_field` tells."""
        param = grammar_field if self.param == "grammar" and grammar_field else self.param
        return type(self)(f"{param}: {self.message}", param=param)


class ContextLengthExceeded(InvalidRequest):
    """Prompt and output together do not fit the model's context or the whole KV memory."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The request names a model that is not served."""

    code = "model_not_found"


class DuplicateRequest(RequestError):
    """The request_id belongs to a request that is still running."""

    code = "duplicate_request"


class ServiceError(PageloomError):
    """The caller may try again later."""


class Overloaded(ServiceError):
    """The queue is full."""

    code = "server_overloaded"


class Unavailable(ServiceError):
    """No worker, no scheduler, or shutting down."""

    code = "service_unavailable"


class DeadlineExceeded(ServiceError):
    """The request's deadline passed."""

    code = "deadline_exceeded"


class EngineError(PageloomError):
    """Something failed inside; the request is not at fault."""

    code = "internal_error"


class StartupError(PageloomError):
    """A process cannot start. Shown as one line, without traceback; the exit code is 1."""


class InvalidConfig(StartupError):
    """A flag, or its environment twin, has a value that is not accepted."""


class ModelLoadError(StartupError):
    """The model's files are missing, truncated, or of a kind that is not supported."""
