"""Gateway processes that share a port, before a simulated worker."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import psutil
import pytest

from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.errors import InvalidConfig, StartupError
from pageloom.local_stack import LocalStack
from pageloom.stack_config import StackConfig
from pageloom.status import GatewayReady
from tests.support.serving import metric


@asynccontextmanager
async def stack(port: int = 0, batch_dir: str | None = None) -> AsyncIterator[LocalStack]:
    config = StackConfig(
        scheduler=SchedulerConfig(log_level="error"),
        worker=WorkerConfig(model="", simulate="fixed:1ms", num_blocks=64, max_model_len=256, log_level="error"),
        gateway=GatewayConfig(model="", served_model_names=("m",), log_level="error", port=port, batch_dir=batch_dir),
        num_gateways=2,
    )
    async with LocalStack(config, lambda _: None) as services:
        services.drain = False
        await services.wait_until_ready()
        yield services


async def test_connections_are_spread_and_all_are_served():
    async with stack() as services:
        url = services.ready(GatewayReady).url
        async with AsyncExitStack() as clients:
            for _ in range(40):
                client = await clients.enter_async_context(httpx.AsyncClient(base_url=url))
                while (await client.get("/ready")).status_code != 200:
                    pass
                answer = await client.post("/v1/completions", json={"model": "m", "prompt": "Hi", "max_tokens": 2})
                assert answer.status_code == 200, answer.text
            for name in ("gateway-0", "gateway-1"):
                connections = psutil.Process(services.pid(name)).net_connections("tcp")
                assert any(connection.status == "ESTABLISHED" for connection in connections), name


async def test_metrics_are_those_of_all():
    async with stack() as services, AsyncExitStack() as clients:
        url = services.ready(GatewayReady).url
        body = {"model": "m", "prompt": "Hi", "max_tokens": 2, "no_such_field": 1}
        for _ in range(20):
            client = await clients.enter_async_context(httpx.AsyncClient(base_url=url))
            while (await client.post("/v1/completions", json=body)).status_code != 200:
                pass
        for _ in range(10):
            client = await clients.enter_async_context(httpx.AsyncClient(base_url=url))
            told = (await client.get("/metrics")).text
            assert metric(told, "pageloom_generation_tokens_total") == 40
            assert metric(told, "pageloom_unknown_request_fields_total") >= 20
            assert metric(told, "pageloom_num_generations_running") == 0
            assert metric(told, "pageloom_build_info") == 1


async def test_responses_are_found_by_whichever_gateway_is_asked():
    async with stack() as services, AsyncExitStack() as clients:
        url = services.ready(GatewayReady).url

        async def connect() -> httpx.AsyncClient:
            return await clients.enter_async_context(httpx.AsyncClient(base_url=url))

        body = {"model": "m", "input": "Hi", "max_output_tokens": 2}
        first = await connect()
        while (answer := await first.post("/v1/responses", json=body)).status_code == 503:
            pass
        made = answer.json()
        for _ in range(10):
            other = await connect()
            assert (await other.get(f"/v1/responses/{made['id']}")).json() == made
            following = {**body, "previous_response_id": made["id"]}
            answer = await other.post("/v1/responses", json=following)
            assert answer.status_code == 200, answer.text
            items = (await first.get(f"/v1/responses/{answer.json()['id']}/input_items")).json()["data"]
            assert len(items) == 3
        assert (await other.delete(f"/v1/responses/{made['id']}")).status_code == 200
        assert (await first.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_what_only_one_gateway_can_do_is_refused():
    async with stack() as services, httpx.AsyncClient(base_url=services.ready(GatewayReady).url) as client:
        body = {"model": "m", "input": "Hi", "background": True}
        refused = await client.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert "several gateways" in refused.json()["error"]["message"]
        refused = await client.post("/v1/files", files={"file": ("x", b"")}, data={"purpose": "batch"})
        assert refused.status_code == 400
        assert "stores no files" in refused.json()["error"]["message"]


async def test_a_batch_directory_has_one_gateway():
    with pytest.raises(InvalidConfig, match="--batch-dir needs --api-server-count 1"):
        async with stack(batch_dir="batches"):
            pass


async def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port}: address already in use"):
            async with stack(port=port):
                pass
