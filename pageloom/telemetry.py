"""Logs and the metrics port, set up the same way in every service."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import prometheus_client
import structlog

from pageloom.errors import StartupError

LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(service: str, level: str) -> None:
    """One line per event on stderr: coloured on a terminal, JSON otherwise. The standard library's
    loggers go through the same pipeline."""
    interactive = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if interactive else "iso", utc=not interactive),
        _service_adder(service),
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if interactive:
        # The default shows the values of local variables too, prompts among them.
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info if not interactive else _keep,
                renderer,
            ],
        )
    )
    # At debug level it would write a line for every RPC.
    logging.getLogger("grpc").setLevel(logging.INFO)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(LOG_LEVELS[level])
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def start_metrics_server(host: str, port: int) -> str:
    """Serves /metrics in a thread, with port 0 at one that is free; its URL. Raises StartupError if the port is
    taken."""
    try:
        server, _thread = prometheus_client.start_http_server(port, addr=host)
    except OSError as error:
        raise StartupError(f"its metrics port {port} cannot be opened on {host}: {error.strerror}") from None
    return f"http://{host}:{server.server_port}/metrics"


def _service_adder(service: str) -> structlog.typing.Processor:
    def add_service(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = service
        return event

    return add_service


def _keep(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return event
