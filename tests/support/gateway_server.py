"""A real gateway on a real socket, in this process, before a scripted engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import openai

from gateway.answers.lifecycle import Lifecycle
from gateway.app import create_app
from gateway.http.server import HttpServer, bind, url_of
from gateway.served_model import ServedModel
from pageloom.client import EngineClient
from pageloom.config import GatewayConfig
from tests.support.scripted_engine import ScriptedEngine

MODEL_NAME = "org/test-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServer:
    """`openai` is the official client, `http` a plain one; both are closed with the server."""

    url: str
    port: int
    engine: ScriptedEngine
    model: ServedModel
    lifecycle: Lifecycle
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    def encode(self, text: str) -> list[int]:
        return self.model.tokenizer.encode(text, add_special_tokens=False)

    async def chat(self, **fields: object) -> httpx.Response:
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: object) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL_NAME, "prompt": "Hi", **fields})


def gateway_config(**settings: object) -> GatewayConfig:
    values = {"model": "", "served_model_names": (MODEL_NAME, "alias"), "port": 0, **settings}
    return GatewayConfig(**values)  # type: ignore[arg-type]


@asynccontextmanager
async def gateway_server(
    model: ServedModel, engine: ScriptedEngine | None = None, *, wait_ready: bool = True, **settings: object
) -> AsyncGenerator[GatewayServer]:
    """Starts engine and gateway, and stops them at the end."""
    engine = engine or ScriptedEngine()
    config = gateway_config(**{"scheduler_address": engine.address, **settings})
    bound, lifecycle, listening = bind(config.host, config.port), Lifecycle(), asyncio.Event()
    # So that a client that does not read is soon felt.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    app = create_app(config, EngineClient(config.scheduler_address), model, lifecycle)
    server = HttpServer(app, listening.set)
    url = url_of(bound)
    # Without certificates to read, which takes longer than the start of a server.
    openai_http = openai.DefaultAsyncHttpxClient(base_url=f"{url}/v1", timeout=10, verify=False)
    async with (
        engine,
        httpx.AsyncClient(base_url=url, timeout=10, verify=False) as http,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10, http_client=openai_http
        ) as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(server.serve(sockets=[bound]))
        try:
            await listening.wait()
            running = GatewayServer(
                url=url,
                port=bound.getsockname()[1],
                engine=engine,
                model=model,
                lifecycle=lifecycle,
                openai=client,
                http=http,
            )
            if wait_ready:
                await until_ready(http)
            yield running
        finally:
            server.should_exit = True


async def until_ready(http: httpx.AsyncClient, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110 -- another process would poll, too
            await asyncio.sleep(0.01)
