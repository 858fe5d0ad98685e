"""Starts the real `pageloom serve` for tests and reads what it says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Serving:
    """A running `pageloom serve`: its URLs, its processes, and what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int, metrics_port: int) -> None:
        self.process = process
        self.log = log
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def services(self) -> dict[str, psutil.Process]:
        """The three service processes by module name."""
        children = psutil.Process(self.process.pid).children()
        return {child.cmdline()[2]: child for child in children if "-m" in child.cmdline()}

    def scheduler_metric(self, name: str) -> float:
        """The sum of a scheduler metric's samples."""
        return metric(httpx.get(self.metrics_url).text, name)

    def wait_until_ready(self) -> None:
        """Returns when it serves, and has said so: it answers once its first worker can, before the others are up."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}:\n{self.output()}")
            try:
                if "Ctrl-C drains" in self.output() and httpx.get(f"{self.url}/ready", timeout=2.0).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready after {READY_TIMEOUT_S} s:\n{self.output()}")

    def stop(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_TIMEOUT_S)


def metric(exposition: str, name: str) -> float:
    """The sum of all samples of one metric in Prometheus text. Raises AssertionError if there is none."""
    values = [
        float(line.rsplit(" ", 1)[1]) for line in exposition.splitlines() if line.startswith((f"{name} ", f"{name}{{"))
    ]
    assert values, f"no metric {name} in:\n{exposition}"
    return sum(values)


@contextmanager
def serving(tmp_path: Path, *args: str) -> Iterator[Serving]:
    """`pageloom serve *args` on free ports, ready; stopped at the end, whatever happens."""
    port, metrics_port = free_port(), free_port()
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "pageloom", "serve", *args]
    command += ["--port", str(port), "--scheduler-metrics-port", str(metrics_port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        running = Serving(process, log, port, metrics_port)
        running.wait_until_ready()
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
