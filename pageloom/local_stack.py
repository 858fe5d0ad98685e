"""Scheduler, worker and gateway as child processes on this host, for `pageloom serve` and tests."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig, fits_socket_address
from pageloom.errors import StartupError
from pageloom.service_process import ServiceProcess
from pageloom.stack_config import StackConfig
from pageloom.status import Failed, GatewayReady, Loading, Ready, SchedulerReady, WorkerReady

# What a service gets beyond its own drain timeout to close its streams and exit.
_EXIT_GRACE_S = 2.0


ReadyT = TypeVar("ReadyT", SchedulerReady, WorkerReady, GatewayReady)


class LocalStack:
    """Starts the processes on entry, stops them in order on exit: the gateway first, so that its
    streams can end, then the scheduler, which sends the workers away, then these, all at once: one left for last
    would dial the scheduler that is gone. If `drain` is set to False before that, nothing waits for running
    requests: the workers leave first, and clients are told that their requests end."""

    def __init__(self, config: StackConfig, on_loading: Callable[[Loading], None]) -> None:
        self.drain = True
        self._config = config
        self._on_loading = on_loading
        self._services: dict[str, ServiceProcess] = {}
        self._watchers: dict[str, asyncio.Task[int]] = {}
        self._ready: dict[str, asyncio.Future[Ready]] = {}
        # Of those that run, what they said last: a worker group that started again has other ports.
        self._reported: dict[str, Ready] = {}
        # Of this user alone: who can reach the socket can use the engine.
        self._directory = tempfile.TemporaryDirectory(prefix="pageloom-")

    async def __aenter__(self) -> Self:
        try:
            await self._start_all()
        except BaseException:
            await self._stop_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_all()

    def ready(self, kind: type[ReadyT]) -> ReadyT:
        """What the service that reports `kind` said when it was ready; it must be."""
        reported = (future.result() for future in self._ready.values() if future.done())
        return next(status for status in reported if isinstance(status, kind))

    @property
    def metrics_urls(self) -> list[str]:
        """Of the services that run and have one."""
        reported = tuple(self._reported.values())
        services = (status for status in reported if isinstance(status, SchedulerReady | WorkerReady))
        return [status.metrics_url for status in services if status.metrics_url is not None]

    @property
    def scheduler_address(self) -> str:
        """Where the Engine service listens for everybody else."""
        return self.ready(SchedulerReady).address

    def pid(self, name: str) -> int:
        """Of a service that was started: scheduler, worker (or worker-0, ...), gateway (or gateway-0, ...)."""
        return self._services[name].pid

    async def wait_until_ready(self) -> None:
        """Returns when every service has reported ready. Raises StartupError if one ends before that."""
        await asyncio.gather(*self._ready.values())

    async def wait_for_exit(self, on_worker_exit: Callable[[str, int], object]) -> tuple[str, int]:
        """Returns when no request can finish any more: name and exit code of the scheduler, the gateway or the last
        worker (negative: the signal that killed it). Tells `on_worker_exit` the same of each worker before the last:
        what that one ran goes on at the others."""
        running = dict(self._watchers)
        while True:
            await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
            for name in [name for name, watcher in running.items() if watcher.done()]:
                code = running.pop(name).result()
                if name not in self._worker_names() or running.keys().isdisjoint(self._worker_names()):
                    return name, code
                on_worker_exit(name, code)

    def kill(self) -> None:
        """Ends everything at once; unfinished requests are lost."""
        for service in self._services.values():
            service.kill()

    async def _start_all(self) -> None:
        scheduler = replace(self._config.scheduler, socket_path=self._socket_path())
        await self._start("scheduler", "scheduler_svc", scheduler)
        await self._ready["scheduler"]
        listening = self.ready(SchedulerReady)
        address = listening.socket_address or listening.address
        for index, name in enumerate(self._worker_names()):
            worker = replace(self._config.worker_config(index), scheduler_address=address)
            await self._start(name, "worker_svc", worker, self._config.worker_environment(index))
        if self._config.gateway is not None:
            await self._start_gateways(self._config.gateway, address)

    async def _start_gateways(self, gateway: GatewayConfig, scheduler_address: str) -> None:
        port = gateway.port
        if self._config.num_gateways > 1 and port:
            _require_free(gateway.host, port)
        directory = os.path.join(self._directory.name, "gateways")
        os.mkdir(directory)
        for name in self._gateway_names():
            config = self._config.gateway_config(gateway, scheduler_address, port, directory)
            await self._start(name, "gateway", config, self._config.gateway_environment(directory))
            if self._config.num_gateways > 1:
                # The others take the port that the first one got.
                await self._ready[name]
                port = urlsplit(self.ready(GatewayReady).url).port or port

    def _socket_path(self) -> str | None:
        path = os.path.join(self._directory.name, "scheduler.sock")
        # Where temporary files lie too deep for a socket, the port has to do.
        return path if fits_socket_address(path) else None

    def _worker_names(self) -> list[str]:
        num_workers = self._config.num_workers
        return ["worker"] if num_workers == 1 else [f"worker-{index}" for index in range(num_workers)]

    def _gateway_names(self) -> list[str]:
        num_gateways = self._config.num_gateways
        return ["gateway"] if num_gateways == 1 else [f"gateway-{index}" for index in range(num_gateways)]

    async def _start(
        self,
        name: str,
        module: str,
        config: SchedulerConfig | WorkerConfig | GatewayConfig,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        service = self._services[name] = await ServiceProcess.start(name, module, config, environment)
        ready = self._ready[name] = asyncio.get_running_loop().create_future()
        self._watchers[name] = asyncio.create_task(self._watch(service, ready))

    async def _watch(self, service: ServiceProcess, ready: asyncio.Future[Ready]) -> int:
        failure = ""
        async for status in service.statuses():
            if isinstance(status, Loading):
                self._on_loading(status)
            elif isinstance(status, Failed):
                failure = status.message
            else:
                self._reported[service.name] = status
                if not ready.done():
                    ready.set_result(status)
        self._reported.pop(service.name, None)
        code = await service.wait()
        if not ready.done():
            ready.set_exception(StartupError(f"{service.name}: {failure or f'ended with exit code {code}'}"))
            # wait_until_ready may never be called, and an exception nobody takes is reported as lost.
            ready.exception()
        return code

    async def _stop_all(self) -> None:
        with self._directory:
            for names, drain_timeout_s in self._stop_order():
                limit_s = (drain_timeout_s if self.drain else 0.0) + _EXIT_GRACE_S
                await asyncio.gather(
                    *(
                        self._services[name].stop(limit_s, at_once=not self.drain)
                        for name in names
                        if name in self._services
                    )
                )
            await asyncio.gather(*self._watchers.values())

    def _stop_order(self) -> list[tuple[list[str], float]]:
        gateway = self._config.gateway
        gateways = self._gateway_names(), 0.0 if gateway is None else gateway.drain_timeout_s
        scheduler = ["scheduler"], self._config.scheduler.drain_timeout_s
        workers = self._worker_names(), 0.0
        return [gateways, scheduler, workers] if self.drain else [gateways, workers, scheduler]


def _require_free(host: str, port: int) -> None:
    """A port to be shared could be bound while the gateways of another stack share it. Raises StartupError."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        raise StartupError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0).lower()}") from None
