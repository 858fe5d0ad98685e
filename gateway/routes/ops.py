"""What operators and their machines ask: /health, /ping, /ready, /load, /version, /metrics. None of them generates."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from gateway.openai.info_schemas import ServerLoad
from gateway.routes.documentation import COMMON_ERRORS, Responses, errors
from gateway.runtime import GatewayDependency
from pageloom import __version__

router = APIRouter()
_NOT_READY = COMMON_ERRORS | errors(503)
_EXPOSITION: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/health", responses=COMMON_ERRORS)
async def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.post("/ping", responses=COMMON_ERRORS)
@router.get("/ping", responses=COMMON_ERRORS)
async def ping() -> dict[str, str]:
    """The same, by the name that some platforms ask for."""
    return {"status": "ok"}


@router.get("/ready", responses=_NOT_READY)
async def ready(gateway: GatewayDependency) -> dict[str, str]:
    """A generation would be accepted."""
    gateway.lifecycle.require_accepting()
    gateway.engine.require_model()
    return {"status": "ready"}


@router.get("/load", responses=COMMON_ERRORS)
async def load(gateway: GatewayDependency) -> ServerLoad:
    """The generations that this gateway runs."""
    return ServerLoad(server_load=gateway.lifecycle.num_running)


@router.get("/version", responses=COMMON_ERRORS)
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/metrics", response_class=Response, responses=_EXPOSITION | COMMON_ERRORS)
async def metrics(gateway: GatewayDependency) -> Response:
    """Prometheus's text format."""
    return Response(gateway.metrics.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
