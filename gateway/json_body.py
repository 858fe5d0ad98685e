"""Reading a JSON body within limits: its type, its size while it arrives, its depth before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import BodyError

MAX_DEPTH = 64
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


class JsonRoute(APIRoute):
    """A FastAPI route whose body is read by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class JsonRequest(Request):
    async def body(self) -> bytes:
        """Raises BodyError: 415 for another content type, 413 for a body over the limit."""
        if not hasattr(self, "_body"):
            self._require_json()
            self._body = await self._read(self.app.state.gateway.config.max_body_bytes)
        return self._body

    async def json(self) -> Any:
        """Raises BodyError (400) unless the body is JSON of bearable depth."""
        body = await self.body()
        if _is_too_deep(body):
            raise BodyError(400, f"the request body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BodyError(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None

    def _require_json(self) -> None:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise BodyError(415, f"content-type must be application/json, not {kind or 'absent'}", close=True)
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise BodyError(415, f"content-encoding {encoding} is not accepted", close=True)

    async def _read(self, max_bytes: int) -> bytes:
        too_large = BodyError(413, f"the request body is larger than {max_bytes} bytes", close=True)
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            raise too_large
        chunks: list[bytes] = []
        num_bytes = 0
        async for chunk in self.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise too_large
            chunks.append(chunk)
        return b"".join(chunks)


def _is_too_deep(body: bytes) -> bool:
    """Removes the innermost brackets once per level, each time in one pass over what is left."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", body).translate(_BRACES_TO_BRACKETS, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        shallower = brackets.replace(b"[]", b"")
        if len(shallower) == len(brackets):
            # Nothing is left, or only what does not match, which the parser reports.
            return False
        brackets = shallower
    return bool(brackets)
