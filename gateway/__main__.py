"""`python -m gateway '<GatewayConfig as JSON>'`: load the model's text side, serve HTTP, drain on a signal."""

from __future__ import annotations

import gc
import socket
import sys

import structlog
import uvloop

from gateway.answers.lifecycle import Lifecycle
from gateway.app import create_app
from gateway.http.server import HttpServer, bind, url_of
from gateway.served_model import ServedModel, load_served_model
from pageloom.client import EngineClient
from pageloom.config import GatewayConfig
from pageloom.status import GatewayReady
from pageloom.supervision import ParentLink, run_service, run_until_stopped
from pageloom.telemetry import configure_logging

_GC_THRESHOLD = 20_000
_log = structlog.get_logger("gateway")


def main(config: GatewayConfig, parent: ParentLink) -> None:
    # Before the model, so that a port in use is known at once.
    bound = bind(config.host, config.port, shared=config.shares_port)
    model = load_served_model(config)
    uvloop.run(_serve(config, parent, bound, model))


async def _serve(config: GatewayConfig, parent: ParentLink, bound: socket.socket, model: ServedModel) -> None:
    _log.info("sampling defaults", said=model.defaults_source)
    lifecycle = Lifecycle()
    app = create_app(config, EngineClient(config.scheduler_address), model, lifecycle)
    server = HttpServer(
        app,
        on_listening=lambda: parent.report(GatewayReady(url=url_of(bound), sampling_defaults=model.defaults_source)),
    )

    # What start-up made lives as long as the process. Tokens make many objects and no cycles, so a look at them all for
    # every few hundred would find nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

    async def drain(timeout_s: float) -> None:
        await lifecycle.drain(timeout_s)
        server.should_exit = True

    await run_until_stopped(parent, server.serve(sockets=[bound]), drain, config.drain_timeout_s)


if __name__ == "__main__":
    service_config = GatewayConfig.from_json(sys.argv[1])
    configure_logging("gateway", service_config.log_level)
    link = ParentLink(service_config.status_fd)
    run_service("gateway", link, lambda: main(service_config, link))
