"""Start and end of `pageloom serve`: what it prints, how it stops, what it says when it cannot start."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from pageloom.gguf_file import read_gguf
from pageloom.gguf_tokenizer import build_backend
from pageloom.model_files import locate_model
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from tests.support.serving import Serving, free_port, serving
from tests.support.tiny_checkpoints import make_checkpoint

MB = 1_000_000


def run_serve(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pageloom", "serve", *args],
        capture_output=True, text=True, timeout=90, env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip


def assert_one_clear_line(outcome: subprocess.CompletedProcess[str], *words: str) -> None:
    assert outcome.returncode != 0
    assert "Traceback" not in outcome.stderr
    lines = [line for line in outcome.stderr.splitlines() if line.strip() and not line.startswith("Loading weights")]
    assert len(lines) == 1, outcome.stderr
    for word in words:
        assert word in lines[0], outcome.stderr


def scheduler_socket(running: Serving) -> Path:
    connections = running.services()["scheduler_svc"].net_connections("unix")
    return Path(next(str(connection.laddr) for connection in connections if connection.laddr))


def wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    _gone, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return alive


def test_the_table_says_what_was_loaded(stack: Serving):
    printed = stack.output()
    for words in (
        "SmolLM2-135M-Instruct",
        "blocks of 32 tokens",
        "full context of 8,192",
        f"{stack.url}/v1",
        "curl -s",
    ):
        assert words in printed, printed


def test_the_printed_curl_line_works(stack: Serving):
    command = next(line for line in stack.output().splitlines() if line.startswith("curl"))
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert "Paris" in answer.stdout


def assert_small_at_rest(running: Serving, kv_bytes: int) -> None:
    resident = {name: process.memory_info().rss / MB for name, process in running.services().items()}
    assert resident["gateway"] <= 130, resident
    assert resident["scheduler_svc"] <= 110, resident
    # The weights are as packed as in the file.
    assert resident["worker_svc"] <= 97 + kv_bytes / MB + 400, resident


def assert_the_scheduler_stays_on_this_host(running: Serving) -> None:
    """Its services have no authentication, so --host opens the gateway alone."""
    services = running.services()
    listening = {
        name: {connection.laddr.ip for connection in process.net_connections() if connection.status == "LISTEN"}
        for name, process in services.items()
    }
    assert listening["gateway"] == {"0.0.0.0"}
    assert {ip.removeprefix("::ffff:") for ip in listening["scheduler_svc"]} == {"127.0.0.1"}
    # Gateway and worker are attached, by the unix socket.
    assert {connection.status for connection in services["scheduler_svc"].net_connections()} == {"LISTEN"}


def assert_no_child_outlives(running: Serving, signum: signal.Signals) -> None:
    processes = list(running.services().values())
    assert len(processes) == 3
    running.process.send_signal(signum)
    assert not wait_until_gone(processes, 15)
    running.process.wait(15)


def test_at_rest_and_when_the_parent_is_killed(tmp_path: Path):
    kv_bytes = 256 * 1024 * 1024
    with serving(tmp_path, "--kv-cache-memory-bytes", str(kv_bytes), "--host", "0.0.0.0") as running:
        assert_small_at_rest(running, kv_bytes)
        assert_the_scheduler_stays_on_this_host(running)
        assert_no_child_outlives(running, signal.SIGKILL)


def test_ctrl_c_lets_a_stream_finish_and_stops_all_three(tmp_path: Path):
    with serving(tmp_path) as running:
        processes = list(running.services().values())
        assert len(processes) == 3
        socket_directory = scheduler_socket(running).parent
        assert socket_directory.stat().st_mode & 0o777 == 0o700
        body = {"model": "SmolLM2-135M-Instruct", "prompt": "One", "max_tokens": 60, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.process.send_signal(signal.SIGINT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert running.process.wait(30) == 0
        assert not wait_until_gone(processes, 5)
        assert not socket_directory.exists()


def test_a_worker_that_dies_is_noticed(tmp_path: Path):
    with serving(tmp_path) as running:
        processes = running.services()
        body = {
            "model": "SmolLM2-135M-Instruct",
            "prompt": "One",
            "max_tokens": 4000,
            "stream": True,
            "ignore_eos": True,
        }
        with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            processes["worker_svc"].kill()
            # Nothing can go on with it, and its client is told so.
            last = list(lines)[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "server_shutting_down"
        assert running.process.wait(30) != 0
        assert not wait_until_gone(list(processes.values()), 5)
        assert "worker" in running.output()


@pytest.mark.parametrize("way", ["killed", "drained"])
def test_one_of_two_workers_may_go(tmp_path: Path, way: str):
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "One", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    port = free_port()
    with serving(tmp_path, "--data-parallel-size", "2", "--scheduler-port", str(port)) as running:
        alone = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
        with httpx.stream(
            "POST", f"{running.url}/v1/completions", json={**body, "stream": True}, timeout=60
        ) as response:
            lines = (line for line in response.iter_lines() if line)
            received = [next(lines)]
            if way == "killed":
                running.services()["worker_svc"].kill()
            else:
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    asked = engine_pb2.DrainWorkerRequest(worker_id="worker-0", timeout_s=0.0)
                    engine_pb2_grpc.EngineStub(channel).DrainWorker(asked, timeout=10)
            received += lines
        assert received[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in received[:-1]]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone
        until_s = time.monotonic() + 15
        while "The others go on without it" not in running.output() and time.monotonic() < until_s:
            time.sleep(0.1)
        assert "The others go on without it" in running.output()
        assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code == 200
        running.services()["worker_svc"].kill()
        assert running.process.wait(30) == 1


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_clear_line(run_serve("--port", str(port)), str(port))
        assert_one_clear_line(run_serve("--port", str(free_port()), "--scheduler-port", str(port)), str(port))


def test_missing_model_folder():
    assert_one_clear_line(run_serve("/no/such/folder"), "/no/such/folder")


def test_truncated_gguf(tmp_path: Path):
    whole = locate_model("").path.read_bytes()
    for name, length in (("header", 1000), ("tensors", len(whole) // 2)):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(whole[:length])
        assert_one_clear_line(run_serve(str(path), "--port", str(free_port())), str(path), "truncated")


@pytest.fixture
def checkpoint_folder(tmp_path: Path) -> Path:
    """A small random Llama as a Hugging Face folder, with the default model's tokenizer."""
    folder = tmp_path / "tiny-llama"
    make_checkpoint(folder, vocab_size=49152)
    build_backend(read_gguf(locate_model("").path).metadata).save(str(folder / "tokenizer.json"))
    return folder


def test_a_safetensors_folder_is_served_until_a_signal(tmp_path: Path, checkpoint_folder: Path):
    with serving(tmp_path, str(checkpoint_folder), "--served-model-name", "tiny") as running:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 5, "ignore_eos": True}
        answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).json()
        assert answer["usage"]["completion_tokens"] == 5
        assert_no_child_outlives(running, signal.SIGTERM)


def test_truncated_safetensors(checkpoint_folder: Path):
    weights = checkpoint_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert_one_clear_line(run_serve(str(checkpoint_folder), "--port", str(free_port())), "model.safetensors")


def test_wrong_flag_values_name_the_flag():
    for args, words in (
        (["--port", "abc"], "--port"),
        (["--dtype", "int3"], "bfloat16"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-num-seqs", "5000"], "--max-num-batched-tokens"),
        (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization"),
    ):
        outcome = run_serve(*args)
        assert outcome.returncode != 0
        assert words in outcome.stderr
        assert "Traceback" not in outcome.stderr


def test_environment_twins():
    outcome = run_serve(PAGELOOM_PORT="abc")
    assert outcome.returncode != 0
    assert "PAGELOOM_PORT" in outcome.stderr


def test_a_parent_that_dies_early_takes_its_loading_worker_along(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-m", "pageloom", "serve", "--port", str(free_port())])
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while not any("worker_svc" in child.cmdline() for child in parent.children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = parent.children()
    assert any("worker_svc" in child.cmdline() for child in children)
    process.kill()
    process.wait()
    assert not wait_until_gone(children, 15)
