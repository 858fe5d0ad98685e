"""The scheduler's gRPC server: Engine, Worker, health and reflection on a port and a unix socket."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pageloom.errors import StartupError
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc, worker_pb2, worker_pb2_grpc
from pageloom.rpc_channel import create_server
from scheduler_svc.engine_service import EngineService
from scheduler_svc.socket_path import claim_socket_path
from scheduler_svc.worker_service import WorkerService

ENGINE = engine_pb2.DESCRIPTOR.services_by_name["Engine"].full_name
WORKER = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name


class Health:
    """grpc.health.v1: "" lives, Worker takes workers, Engine serves requests."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()

    async def start(self) -> None:
        """The process lives and takes workers; nothing can run yet."""
        await self._set("", True)
        await self._set(WORKER, True)
        await self._set(ENGINE, False)

    async def set_engine_serving(self, serving: bool) -> None:
        await self._set(ENGINE, serving)

    async def _set(self, service: str, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.servicer.set(service, status.SERVING if serving else status.NOT_SERVING)


def build_server(engine: EngineService, worker: WorkerService, health_service: Health) -> grpc.aio.Server:
    server = create_server()
    engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
    worker_pb2_grpc.add_WorkerServicer_to_server(worker, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service.servicer, server)
    reflection.enable_server_reflection((ENGINE, WORKER, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def listen(server: grpc.aio.Server, host: str, port: int) -> str:
    """Binds and returns "host:port". Raises StartupError if the port cannot be had."""
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise StartupError(f"port {port} on {host} cannot be opened: it is in use, or the address is not this host's")
    return f"{host}:{bound}"


def listen_unix(server: grpc.aio.Server, path: str) -> str:
    """Binds a unix socket and returns "unix:/path"; the server removes it when it stops. Raises StartupError if the
    path cannot be had."""
    path = claim_socket_path(path)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        raise StartupError(f"--uds: {path} cannot be opened; may this user write to its directory?") from None
    return f"unix:{path}"
