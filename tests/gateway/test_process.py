"""The gateway as its own process: start, memory, drain, and the ways it ends."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import httpx
import psutil
import pytest

from gateway.http.server import bind
from pageloom.config import GatewayConfig
from pageloom.errors import StartupError
from tests.support.gateway_server import MODEL_NAME, gateway_config, until_ready
from tests.support.scripted_engine import MODEL, ScriptedEngine, finished, tokens

MAX_RESIDENT_BYTES = 130_000_000
BODY = {"model": MODEL_NAME, "prompt": "x", "stream": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProcess:
    process: subprocess.Popen[bytes]
    parent_end: socket.socket
    http: httpx.AsyncClient
    ready: dict[str, object]

    async def exit_code(self, timeout_s: float = 5.0) -> int:
        return await asyncio.to_thread(self.process.wait, timeout_s)


@asynccontextmanager
async def gateway_process(engine: ScriptedEngine, **settings: object) -> AsyncGenerator[GatewayProcess]:
    ours, theirs = socket.socketpair()
    config = gateway_config(scheduler_address=engine.address, status_fd=theirs.fileno(), **settings)
    process = start(config, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        line = await asyncio.to_thread(ours.makefile().readline)
        ready = json.loads(line)
        async with engine, httpx.AsyncClient(base_url=str(ready["url"]), timeout=10) as http:
            await until_ready(http)
            yield GatewayProcess(process=process, parent_end=ours, http=http, ready=ready)
    finally:
        ours.close()
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def start(config: GatewayConfig, pass_fds: list[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gateway", config.to_json()]
    return subprocess.Popen(command, pass_fds=pass_fds, stderr=subprocess.PIPE)


def slow_script(num_tokens: int, step_s: float):
    async def script(_request):
        for position in range(num_tokens):
            yield tokens(0, position, [100 + position])
            await asyncio.sleep(step_s)
        yield finished(0, num_tokens)

    return script


async def test_reports_its_url_and_needs_little_memory():
    engine = ScriptedEngine()
    engine.script = slow_script(3, 0.0)
    async with gateway_process(engine) as running:
        assert running.ready["status"] == "GatewayReady"
        for _ in range(5):
            assert (await running.http.post("/v1/completions", json=BODY)).status_code == 200
        memory = psutil.Process(running.process.pid).memory_info().rss
        assert memory <= MAX_RESIDENT_BYTES, f"{memory / 1e6:.0f} MB"


async def test_drain_lets_streams_finish_and_takes_no_new_ones():
    engine = ScriptedEngine()
    engine.script = slow_script(20, 0.03)
    async with gateway_process(engine) as running, running.http.stream("POST", "/v1/completions", json=BODY) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        running.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(1):
            while (ready := await running.http.get("/ready")).status_code == 200:
                pass
        assert ready.json()["error"]["code"] == "server_shutting_down"
        refused = await running.http.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_shutting_down")
        assert (await running.http.get("/health")).status_code == 200
        rest = [line async for line in lines]
        assert rest[-2] == "data: [DONE]"
        assert await running.exit_code() == 0


async def test_drain_ends_streams_that_take_too_long():
    engine = ScriptedEngine()
    engine.script = slow_script(1000, 0.03)
    async with gateway_process(engine, drain_timeout_s=0.3) as running:
        whole = asyncio.create_task(running.http.post("/v1/completions", json=BODY | {"stream": False}))
        async with running.http.stream("POST", "/v1/completions", json=BODY) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            await engine.until(lambda: len(engine.requests) == 2)
            running.process.send_signal(signal.SIGTERM)
            events = [line async for line in lines if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "server_shutting_down"
        assert "data: [DONE]" not in events
        assert ((await whole).status_code, (await whole).json()["error"]["code"]) == (503, "server_shutting_down")
        assert await running.exit_code() == 0
        await engine.until(lambda: len(engine.closed) == 2)


@pytest.mark.parametrize("how", ["second signal", "parent dies"])
async def test_ends_at_once(how: str):
    engine = ScriptedEngine()
    engine.script = slow_script(1000, 0.03)
    async with gateway_process(engine) as running:
        streaming = asyncio.create_task(running.http.post("/v1/completions", json=BODY))
        await engine.until(lambda: len(engine.requests) == 1)
        if how == "parent dies":
            running.parent_end.close()
        else:
            running.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGTERM)
        start_s = time.monotonic()
        await running.exit_code()
        assert time.monotonic() - start_s < 2.0
        with suppress(httpx.TransportError):
            assert "[DONE]" not in (await streaming).text
        await engine.until(lambda: len(engine.closed) == 1)


async def test_access_log_is_json_without_prompts():
    engine = ScriptedEngine()
    engine.script = slow_script(2, 0.0)
    async with gateway_process(engine) as running:
        body = BODY | {"prompt": "a secret word"}
        await running.http.post("/v1/completions", json=body, headers={"x-request-id": "r-1"})
        running.process.send_signal(signal.SIGTERM)
        await running.exit_code()
        assert running.process.stderr is not None
        output = running.process.stderr.read().decode()
    assert "secret" not in output
    (line,) = [line for line in map(json.loads, output.splitlines()) if line.get("request_id") == "r-1"]
    assert (line["route"], line["status"], line["finish"]) == ("/v1/completions", 200, "length")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (3, 2)
    assert line["ttft_ms"] <= line["e2e_ms"]
    assert {"service", "level", "timestamp"} <= set(line)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"port": "taken"}, "cannot listen on 127.0.0.1:{port}: address already in use"),
        ({"model": "/no/such/folder"}, "'/no/such/folder' not found"),
    ],
)
def test_cannot_start(settings: dict[str, object], reason: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if settings.get("port") == "taken":
            settings = {"port": port}
        process = start(gateway_config(scheduler_address="127.0.0.1:1", **settings), pass_fds=[])
        _, stderr = process.communicate(timeout=20)
    (line,) = stderr.decode().splitlines()
    assert line.startswith("pageloom gateway: ")
    assert reason.format(port=port) in line
    assert process.returncode == 1


def test_an_address_that_does_not_exist():
    with pytest.raises(StartupError, match=r"cannot listen on no\.such\.host\.invalid:0"):
        bind("no.such.host.invalid", 0)


def test_heavy_libraries_stay_out():
    code = "import gateway.__main__, sys; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize(("vocab_size", "warns"), [(49_152, False), (49_280, False), (128_256, True), (32_000, True)])
async def test_a_model_whose_tokenizer_is_another_is_warned_of(vocab_size: int, warns: bool):
    engine = ScriptedEngine()
    engine.model = replace(MODEL, vocab_size=vocab_size)
    async with gateway_process(engine) as running:
        running.process.terminate()
        await running.exit_code()
        assert running.process.stderr is not None
        output = running.process.stderr.read().decode()
    assert ("another than this gateway's" in output) == warns
