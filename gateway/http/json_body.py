"""Reading a JSON body within limits: its type, its size while it arrives, its shape before it is parsed, and then the
request model that it makes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import BodyError
from gateway.http.bounded_body import bounded, require_content_type
from gateway.http.middleware import record_of
from gateway.requests.limits import check_limits
from gateway.requests.unserved_fields import num_unknown
from pageloom.config import GatewayConfig
from pageloom.errors import InvalidRequest
from pageloom.field_errors import naming_fields
from pageloom.json_shape import excess_of
from pageloom.request_limits import RequestLimits
from pageloom.request_model import RequestModel

# What is larger is read in a thread: parsing and validation take up to 20 ms for a MiB. Each holds the interpreter from
# its beginning to its end, so in a thread it is the limits on the shape that keep the others' waits short.
MAX_INLINE_BYTES = 64 * 1024


class JsonRoute(APIRoute):
    """A FastAPI route whose body is read by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model = None if self.body_field is None else self.body_field.field_info.annotation
        assert model is None or (isinstance(model, type) and issubclass(model, RequestModel))

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request, model))

        return handle_json


class JsonRequest(Request):
    """Its JSON is an instance of `model`, which FastAPI takes for validated."""

    def __init__(self, request: Request, model: type[RequestModel] | None) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def body(self) -> bytes:
        """Raises BodyError: 415 for another content type, 413 for a body over the limit."""
        if not hasattr(self, "_body"):
            self._require_json()
            self._body = await self._read(self._config.max_body_bytes)
            record_of(self.scope).num_body_bytes = len(self._body)
        return self._body

    async def json(self) -> Any:
        """Raises BodyError (400) unless the body is JSON of bearable shape, no part of it is too large, and the model
        takes it."""
        body, limits = await self.body(), self._config.limits
        assert self._model is not None, "FastAPI asks for no body that the route does not take"
        gateway = self.app.state.gateway
        if len(body) <= MAX_INLINE_BYTES:
            value = _read_model(body, self._model, limits)
        else:
            value = await gateway.in_thread(_read_model, body, self._model, limits)
        gateway.metrics.unknown_fields.inc(num_unknown(value))
        return value

    @property
    def _config(self) -> GatewayConfig:
        config: GatewayConfig = self.app.state.gateway.config
        return config

    def _require_json(self) -> None:
        require_content_type(self.headers, "application/json")
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise BodyError(415, f"content-encoding {encoding} is not accepted", close=True)

    async def _read(self, max_bytes: int) -> bytes:
        too_large = BodyError(413, f"the request body is larger than {max_bytes} bytes", close=True)
        return b"".join([chunk async for chunk in bounded(self.stream(), self.headers, max_bytes, too_large)])


def _read_model(body: bytes, model: type[RequestModel], limits: RequestLimits) -> RequestModel:
    excess = excess_of(body, limits.max_json_depth, limits.max_json_containers, limits.max_json_strings)
    if excess:
        raise BodyError(400, f"the request body is not accepted: {excess}", code="invalid_json")
    try:
        value = orjson.loads(body)
        if isinstance(value, dict):
            check_limits(value, limits)
        with naming_fields():
            return model.model_validate(value)
    except orjson.JSONDecodeError as error:
        raise BodyError(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None
    except InvalidRequest as error:
        raise BodyError(400, error.message, code=error.code, param=error.param) from None
