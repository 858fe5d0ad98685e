"""What operators and their machines ask: /health, /ready, /version, /metrics. None of them generates."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from gateway.routes.documentation import ERRORS
from gateway.runtime import GatewayDependency
from pageloom import __version__

router = APIRouter()
_NOT_READY: dict[int | str, dict[str, Any]] = {503: ERRORS[503]}


@router.get("/health")
async def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/ready", responses=_NOT_READY)
async def ready(gateway: GatewayDependency) -> dict[str, str]:
    """A generation would be accepted."""
    gateway.lifecycle.require_accepting()
    gateway.engine.require_model()
    return {"status": "ready"}


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics")
async def metrics(gateway: GatewayDependency) -> Response:
    return Response(gateway.metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
