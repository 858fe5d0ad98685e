"""Streams that get a token at each step: how they are asked for, before a stack of real services."""

import asyncio

from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.latency import Round
from benchmarks.load import run_round
from benchmarks.workloads import NUM_RESERVED_IDS, CompletionRequest, Lengths, Workload

MODEL_NAME = "simulated"
PROMPT_LEN = 16
TIMEOUT_S = 300.0


async def until_it_serves(endpoint: Endpoint) -> None:
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
