"""What happens around every request: its id, limits on its head, one log line and one count."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ClientDisconnected, http_error_response, in_shape_of, internal_error_response
from gateway.metrics import GatewayMetrics, RequestObserver

MAX_HEADER_BYTES, MAX_HEADERS = 64 * 1024, 100
MAX_PATH_BYTES = 8 * 1024
MAX_REQUEST_ID_CHARS = 128
# Asked every few seconds by machines.
_QUIET_ROUTES = frozenset({"/health", "/ready", "/metrics"})
# What nginx writes for a client that left before it was answered.
CLIENT_CLOSED_REQUEST = 499
_log = structlog.get_logger("gateway.access")


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What is known of one request once it has ended. `answer_id`, by which the engine knows it, and
    `observer` are set if it generated."""

    request_id: str
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    num_body_bytes: int = 0
    answer_id: str | None = None
    observer: RequestObserver | None = None


def record_of(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope["state"]["record"]
    return record


def server_send(scope: Scope) -> Send:
    """For the body of a response that has started: no layer between the server and a route does anything with that, but
    each would add a call to every token."""
    send: Send = scope["state"]["send"]
    return send


class RequestMiddleware:
    """Around the routes and their errors, so that no request goes unseen; only preflights of browsers do."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord(request_id=_request_id(headers))
        scope.setdefault("state", {}).update(record=record, send=send)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            await self._answer(scope, receive, send_marked, record)
        finally:
            self._conclude(scope, record)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        refusal = _refusal(scope)
        if refusal is not None:
            status, message = refusal
            await in_shape_of(scope["path"], http_error_response(status, message), message)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except ClientDisconnected:
            record.status = CLIENT_CLOSED_REQUEST
        except Exception:
            _log.exception("request failed", request_id=record.request_id)
            if record.status is not None:
                raise
            await internal_error_response(scope["path"])(scope, receive, send)

    def _conclude(self, scope: Scope, record: RequestRecord) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        status = record.status or CLIENT_CLOSED_REQUEST
        self._metrics.http_requests.labels(scope["method"], route, status).inc()
        facts: dict[str, object] = {
            "request_id": record.request_id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "e2e_ms": _milliseconds(time.monotonic() - record.started_s),
        }
        if record.observer is not None:
            facts |= {
                "answer_id": record.answer_id,
                "prompt_tokens": record.observer.num_prompt_tokens,
                "completion_tokens": record.observer.num_completion_tokens,
                "ttft_ms": _milliseconds(record.observer.ttft_s),
                "finish": record.observer.finish,
            }
        log = _log.debug if route in _QUIET_ROUTES else _log.info
        log("request", **facts)


def _refusal(scope: Scope) -> tuple[int, str] | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_PATH_BYTES:
        return 414, f"the URL is longer than {MAX_PATH_BYTES} bytes"
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        return 431, f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all are accepted"
    return None


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    if 0 < len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
