"""The scheduler's unix socket: when its path can be had, and that it goes with its process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pageloom.errors import StartupError
from scheduler_svc.socket_path import claim_socket_path


def test_a_free_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert claim_socket_path("scheduler.sock") == str(tmp_path / "scheduler.sock")


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path):
    path = str(tmp_path / "s.sock")
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with pytest.raises(StartupError, match=f"{path} is in use"):
            claim_socket_path(path)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = sockets.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        # It takes no more connections, but it lives.
        with pytest.raises(StartupError, match="in use"):
            claim_socket_path(path)
    assert os.path.exists(path)
    assert claim_socket_path(path) == path
    assert not os.path.exists(path)


def test_what_is_no_socket_is_left_alone(tmp_path: Path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StartupError, match="is not a socket"):
        claim_socket_path(str(path))
    assert path.read_text() == "data"


def test_a_socket_of_another_kind_is_left_alone(tmp_path: Path):
    path = str(tmp_path / "log.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        with pytest.raises(StartupError, match=f"{path} is in use"):
            claim_socket_path(path)
    assert os.path.exists(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such/directory/s.sock", "no directory /no/such/directory"), ("/tmp/" + "x" * 96, "100 bytes")],
)
def test_a_path_that_cannot_be(path: str, words: str):
    with pytest.raises(StartupError, match=words):
        claim_socket_path(path)


def start(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pageloom", "scheduler", "--port", "0", "--uds", str(path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_until_serving(path: Path) -> None:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=20, wait_for_ready=True
        )
    assert check.status == health_pb2.HealthCheckResponse.SERVING


def test_one_process_at_a_time_has_the_socket(tmp_path: Path):
    path = tmp_path / "s.sock"
    with start(path) as first:
        wait_until_serving(path)
        with start(path) as second:
            _, error = second.communicate(timeout=20)
        assert second.returncode == 1
        assert error.splitlines()[-1] == f"pageloom scheduler: --uds: {path} is in use: another process listens on it"
        wait_until_serving(path)
        first.kill()
        first.communicate(timeout=20)
    assert path.exists()
    with start(path) as third:
        # The file of the dead process is there at first.
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                wait_until_serving(path)
                break
            except grpc.RpcError:
                time.sleep(0.1)
        third.send_signal(signal.SIGTERM)
        _, error = third.communicate(timeout=20)
    assert third.returncode == 0, error
    assert not path.exists()
