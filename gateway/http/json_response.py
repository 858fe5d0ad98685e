"""A value -> the HTTP response that has it as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return encoded_response(orjson.dumps(body), status, headers)


def encoded_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The same of JSON text."""
    return Response(body, status, headers=headers, media_type="application/json")
