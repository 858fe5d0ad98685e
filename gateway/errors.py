"""Every error -> HTTP status and OpenAI's error body. The only place that knows both."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from gateway.anthropic import errors as anthropic_errors
from gateway.http.json_response import json_response
from pageloom.errors import (
    DeadlineExceeded,
    DuplicateRequest,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PageloomError,
    RequestError,
    Unavailable,
)
from pageloom.field_errors import invalid_request

RETRY_AFTER_S = 1
SERVER_ERROR, REQUEST_ERROR = "server_error", "invalid_request_error"

_HTTP_CODES = {
    404: "unknown_url",
    405: "method_not_allowed",
    413: "request_too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    431: "headers_too_large",
}


class NotFound(RequestError):
    """Something that the path or a field names is not here."""

    code = "not_found"


class ShuttingDown(Unavailable):
    """The gateway drains."""

    code = "server_shutting_down"


class ClientDisconnected(Exception):
    """Nobody is left to answer."""


# The most specific class comes first: lookups take the first match.
_STATUS: tuple[tuple[type[PageloomError], int], ...] = (
    (InvalidRequest, 400),
    (ModelNotFound, 404),
    (NotFound, 404),
    (DuplicateRequest, 409),
    (Overloaded, 503),
    (Unavailable, 503),
    (DeadlineExceeded, 504),
)


def status_of(error: PageloomError) -> int:
    return next((status for error_type, status in _STATUS if isinstance(error, error_type)), 500)


def error_body(error: PageloomError) -> dict[str, dict[str, str | None]]:
    kind = REQUEST_ERROR if isinstance(error, RequestError) else SERVER_ERROR
    return _envelope(error.message, kind=kind, param=error.param, code=error.code)


def error_response(error: PageloomError) -> Response:
    status = status_of(error)
    headers = {}
    if status in (429, 503):
        headers = {"retry-after": str(RETRY_AFTER_S), "retry-after-ms": str(RETRY_AFTER_S * 1000)}
    elif status == 504:
        # The caller has said when the answer is worth nothing any more; OpenAI's clients know this header.
        headers = {"x-should-retry": "false"}
    return json_response(error_body(error), status, headers)


def internal_error_response(path: str) -> Response:
    """For an exception that nobody expected; what it says is for the log, not for the caller."""
    message = "internal error"
    body = _envelope(message, kind=SERVER_ERROR, param=None, code="internal_error")
    return in_shape_of(path, json_response(body, 500), message)


def http_error_response(status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
    body = _envelope(message, kind=REQUEST_ERROR, param=param, code=code or _HTTP_CODES.get(status))
    return json_response(body, status)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(PageloomError, _on_pageloom_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)


async def _on_pageloom_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PageloomError)
    return in_shape_of(request.scope["path"], error_response(error), error.message)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    invalid = invalid_request(error.errors())
    return in_shape_of(request.scope["path"], error_response(invalid), invalid.message)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, code, param = str(error.detail), None, None
    if isinstance(error, BodyError):
        code, param = error.code, error.param
    elif error.status_code == 404:
        message = f"unknown request URL: {request.method} {request.scope['path']}"
    elif error.status_code == 405:
        message = f"{request.scope['path']} does not take {request.method}"
    response = http_error_response(error.status_code, message, code=code, param=param)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(sorted(_methods_of_path(request)))
    return in_shape_of(request.scope["path"], response, message)


def in_shape_of(path: str, response: Response, message: str) -> Response:
    """Clients of the other API read errors of another shape."""
    if not path.startswith(anthropic_errors.PATH_PREFIX):
        return response
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return json_response(anthropic_errors.envelope(response.status_code, message), response.status_code, headers)


def _methods_of_path(request: Request) -> set[str]:
    """Of all routes: the framework names only those of the first that has the path."""
    routes = iter_route_contexts(request.app.routes)
    return {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


class BodyError(HTTPException):
    """The request's body cannot be taken; `code` and `param` are those of the error body.

    An HTTPException, because FastAPI replaces any other that is raised while it reads a body.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, close: bool = False
    ) -> None:
        super().__init__(status, message, headers={"connection": "close"} if close else None)
        self.code = code
        self.param = param


def _envelope(message: str, *, kind: str, param: str | None, code: str | None) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
