"""The containers' health check, run as a container runs it, against real servers."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

HEALTHCHECK = Path(__file__).parents[2] / "deploy" / "healthcheck.py"


def check(url):
    return subprocess.run([sys.executable, HEALTHCHECK, url], capture_output=True, text=True, timeout=30, check=False)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()

    def log_message(self, *args):
        """Nothing: pytest's output stays clean."""


@contextmanager
def http_server():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def grpc_server(status):
    servicer = health.HealthServicer()
    servicer.set("", status)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"grpc://127.0.0.1:{port}"
        server.stop(None).wait()


def test_http():
    with http_server() as url:
        assert check(f"{url}/ready").returncode == 0
        unready = check(f"{url}/other")
    assert unready.returncode == 1
    assert "/other answered 503" in unready.stderr


@pytest.mark.parametrize("status", ["SERVING", "NOT_SERVING"])
def test_grpc(status):
    with grpc_server(health_pb2.HealthCheckResponse.ServingStatus.Value(status)) as url:
        result = check(url)
    assert result.returncode == (0 if status == "SERVING" else 1)
    assert result.stderr.strip() == ("" if status == "SERVING" else status)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/ready", "grpc://127.0.0.1:1"])
def test_nobody_listens(url):
    result = check(url)
    assert result.returncode == 1
    assert "127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr
