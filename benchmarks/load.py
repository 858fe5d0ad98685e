"""How is a round of a workload sent? As a closed loop on kept-alive connections; encoding and reading are not timed."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.completions import encode_request, read_completion
from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, Exchange, HttpConnection, StaleConnection
from benchmarks.latency import Round
from benchmarks.workloads import WORKLOADS, CompletionRequest, Workload, round_requests

ALL_WORKLOADS = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is sent. A warm-up wave is as many requests as the workload runs at once."""

    num_rounds: int
    num_warmup_waves: int
    requests_scale: float
    seed: int
    vocab_size: int
    timeout_s: float

    def requests(self, workload: Workload, round_name: str) -> list[CompletionRequest]:
        return round_requests(
            workload,
            round_name=round_name,
            seed=self.seed,
            vocab_size=self.vocab_size,
            scale=self.requests_scale,
        )


def chosen_workloads(names: list[str]) -> list[Workload]:
    """Raises: BenchmarkError if there is none of that name."""
    unknown = [name for name in names if name not in WORKLOADS and name != ALL_WORKLOADS]
    if unknown:
        raise BenchmarkError(f"--workload must be one of {', '.join([*WORKLOADS, ALL_WORKLOADS])}, not {unknown[0]}")
    return [workload for name, workload in WORKLOADS.items() if ALL_WORKLOADS in names or name in names]


async def first_model(endpoint: Endpoint, timeout_s: float) -> str:
    """Raises: BenchmarkError if the server names none."""
    connection = await HttpConnection.open(endpoint)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await connection.exchange(endpoint.encode("GET", "/v1/models"))
        return str(json.loads(answer.body)["data"][0]["id"])
    except (TimeoutError, ValueError, LookupError, TypeError) as error:
        raise BenchmarkError("the server's /v1/models names no model: pass --model") from error
    finally:
        connection.close()


async def warm_up(endpoint: Endpoint, model: str, workload: Workload, settings: Settings) -> None:
    for wave in range(settings.num_warmup_waves):
        requests = settings.requests(workload, f"warmup-{wave}")[: workload.concurrency]
        await run_round(endpoint, model, workload, requests, settings.timeout_s)


async def run_round(
    endpoint: Endpoint, model: str, workload: Workload, requests: list[CompletionRequest], timeout_s: float
) -> Round:
    """Raises: BenchmarkError if a request failed."""
    encoded = [encode_request(endpoint, model, request) for request in requests]
    queue = iter(enumerate(encoded))
    num_slots = min(workload.concurrency, len(requests))
    connections = [await HttpConnection.open(endpoint) for _ in range(num_slots)]
    exchanges: dict[int, Exchange] = {}
    cpu_start_s = time.process_time()
    try:
        async with asyncio.TaskGroup() as slots:
            for connection in connections:
                slots.create_task(_run_slot(endpoint, connection, queue, exchanges, timeout_s))
    except* BenchmarkError as group:
        raise group.exceptions[0] from None
    client_cpu_s = time.process_time() - cpu_start_s
    completions = tuple(read_completion(exchanges[index], request) for index, request in enumerate(requests))
    return Round(completions=completions, client_cpu_s=client_cpu_s)


async def _run_slot(
    endpoint: Endpoint,
    connection: HttpConnection,
    queue: Iterator[tuple[int, bytes]],
    exchanges: dict[int, Exchange],
    timeout_s: float,
) -> None:
    """Takes requests off the shared queue, one after the other, until it is empty."""
    try:
        for index, request in queue:
            if not connection.is_open:
                connection = await HttpConnection.open(endpoint)
            async with asyncio.timeout(timeout_s):
                try:
                    exchanges[index] = await connection.exchange(request)
                except StaleConnection:
                    connection = await HttpConnection.open(endpoint)
                    exchanges[index] = await connection.exchange(request)
    except TimeoutError:
        raise BenchmarkError(f"a request took longer than {timeout_s:g} s") from None
    finally:
        connection.close()
