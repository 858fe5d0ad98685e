"""Streams that get a token at each step: how they are asked for, before a stack of real services."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.latency import Round
from benchmarks.load import run_round
from benchmarks.workloads import NUM_RESERVED_IDS, CompletionRequest, Lengths, Workload
from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack
from pageloom.stack_config import StackConfig
from pageloom.status import GatewayReady

MODEL_NAME = "simulated"
PROMPT_LEN = 16
TIMEOUT_S = 300.0


@asynccontextmanager
async def serving(scheduler: SchedulerConfig, worker: WorkerConfig) -> AsyncGenerator[tuple[LocalStack, Endpoint]]:
    """These and a gateway, as processes of their own, once they answer."""
    gateway = GatewayConfig(model="", served_model_names=(MODEL_NAME,), port=0, log_level="error")
    async with LocalStack(StackConfig(scheduler=scheduler, worker=worker, gateway=gateway), lambda _: None) as services:
        services.drain = False
        await services.wait_until_ready()
        endpoint = Endpoint.parse(services.ready(GatewayReady).url)
        await _until_it_serves(endpoint)
        yield services, endpoint


async def _until_it_serves(endpoint: Endpoint) -> None:
    """The gateway hears of the worker a little after it listens."""
    connection = await HttpConnection.open(endpoint)
    try:
        while (await connection.exchange(endpoint.encode("GET", "/ready"))).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        connection.close()


async def run_streams(endpoint: Endpoint, num_streams: int, num_tokens: int) -> Round:
    """As many streams at once, each of as many tokens. Raises: BenchmarkError if one failed."""
    workload = Workload(
        name="streams",
        description="a token at each step",
        concurrency=num_streams,
        num_requests=num_streams,
        prompt=Lengths(mean=PROMPT_LEN),
        output=Lengths(mean=num_tokens),
    )
    requests = [
        CompletionRequest(
            prompt_token_ids=tuple(NUM_RESERVED_IDS + (index * 7 + at) % 1000 for at in range(PROMPT_LEN)),
            num_output_tokens=num_tokens,
        )
        for index in range(num_streams)
    ]
    return await run_round(endpoint, MODEL_NAME, workload, requests, TIMEOUT_S)
