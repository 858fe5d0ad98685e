"""An OpenAI-compatible server on loopback whose every delay, count and fault is known.

The model's name picks the script.
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

TTFT_S = 0.06
GAP_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Script:
    """How a model answers. `num_missing_tokens` are never generated; `fault` happens after the first chunk."""

    tokens_per_chunk: int = 1
    running_usage: bool = True
    num_missing_tokens: int = 0
    fault: str | None = None


SCRIPTS = {
    "steady": Script(),
    "pairs": Script(tokens_per_chunk=2),
    "text-only": Script(running_usage=False),
    "short": Script(num_missing_tokens=1),
    "error-event": Script(fault="error-event"),
    "cut": Script(fault="cut"),
}


@dataclass
class ScriptedServer:
    url: str
    prompts: list[list[int]] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0

    def forget(self) -> None:
        self.prompts.clear()
        self.most_running = 0


def _app(server: ScriptedServer) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": "steady", "object": "model"}]}

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        if body["model"] not in SCRIPTS:
            return JSONResponse({"error": {"message": f"no model {body['model']}"}}, status_code=404)
        server.prompts.append(body["prompt"])
        return StreamingResponse(_stream(server, SCRIPTS[body["model"]], body), media_type="text/event-stream")

    return app


async def _stream(server: ScriptedServer, script: Script, body: dict[str, Any]) -> AsyncIterator[bytes]:
    server.num_running += 1
    server.most_running = max(server.most_running, server.num_running)
    try:
        assert body["ignore_eos"]
        assert body["temperature"] == 0
        prompt_len, output_len = len(body["prompt"]), body["max_tokens"] - script.num_missing_tokens
        start_s = time.perf_counter()
        for index, num_tokens in enumerate(range(script.tokens_per_chunk, output_len + 1, script.tokens_per_chunk)):
            # Against the clock, so that a late wake-up does not push every later chunk.
            due_s = start_s + TTFT_S + index * script.tokens_per_chunk * GAP_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if index == 1 and script.fault == "error-event":
                yield b'data: {"error": {"message": "worker lost"}}\n\n'
                return
            if index == 1 and script.fault == "cut":
                raise ConnectionAbortedError
            usage = _usage(prompt_len, num_tokens) if script.running_usage else None
            yield _event({"choices": [{"index": 0, "text": " x", "finish_reason": None}], "usage": usage})
        yield _event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": None})
        yield _event({"choices": [], "usage": _usage(prompt_len, output_len)})
        yield b"data: [DONE]\n\n"
    finally:
        server.num_running -= 1


def _event(chunk: dict[str, Any]) -> bytes:
    return b": ping\n\ndata: " + json.dumps(chunk).encode() + b"\n\n"


def _usage(prompt_len: int, num_tokens: int) -> dict[str, object]:
    details = {"cached_tokens": prompt_len // 4}
    return {"prompt_tokens": prompt_len, "completion_tokens": num_tokens, "prompt_tokens_details": details}


def serve(port: int) -> None:
    """In a process of its own, until it is ended: `python -m tests.benchmarks.scripted_server PORT`."""
    uvicorn.run(_app(ScriptedServer(f"http://127.0.0.1:{port}")), port=port, log_level="critical")


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        uvicorn_server = uvicorn.Server(uvicorn.Config(_app(server), log_level="critical", lifespan="off"))
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield server
        finally:
            uvicorn_server.should_exit = True
            thread.join()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
