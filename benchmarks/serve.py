"""How fast does a running OpenAI-compatible server answer? A load generator: `python -m benchmarks.serve --help`.

It drives Pageloom, vLLM or llama.cpp's server alike over /v1/completions, with fixed token-id prompts,
greedy, each request to its full length. What the figures mean is in `latency.py`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.completions import encode_request, read_completion
from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, Exchange, HttpConnection
from benchmarks.latency import Round, Summary, summarize
from benchmarks.machine import Machine
from benchmarks.report import print_table, write_json
from benchmarks.workloads import NUM_RESERVED_IDS, WORKLOADS, CompletionRequest, Workload, round_requests

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


def main(
    url: Annotated[str, typer.Option(help="The server, with or without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Model to name in requests. Default: the server's first.")] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated: {', '.join(WORKLOADS)}, or {ALL_WORKLOADS} (default).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of each workload.")] = 3,
    warmup: Annotated[
        int, typer.Option(min=0, help="Unmeasured waves before the rounds, each as many requests as run at once.")
    ] = 1,
    requests_scale: Annotated[
        float, typer.Option(min=0.0, help="Multiplies the requests of a round: 0.1 for a quick look.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Draws the token ids. The same seed twice finds its prompts in the prefix cache.")
    ] = 0,
    vocab_size: Annotated[
        int, typer.Option(min=2 * NUM_RESERVED_IDS, help="Prompts use ids below this and above the special tokens.")
    ] = 49152,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that one request may take.")] = 600.0,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of the server in the table and in JSON.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure output tokens/s, time to first token and inter-token latency of a running server."""
    settings = Settings(
        num_rounds=rounds,
        num_warmup_waves=warmup,
        requests_scale=requests_scale,
        seed=seed,
        vocab_size=vocab_size,
        timeout_s=timeout,
    )
    try:
        chosen = _chosen_workloads(workload or [ALL_WORKLOADS])
        endpoint = Endpoint.parse(url, api_key)
        model = model or uvloop.run(_first_model(endpoint, timeout))
        summaries = uvloop.run(_measure_all(endpoint, model, chosen, settings))
    except BenchmarkError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    machine = Machine.describe()
    print_table(Console(), f"{label or url}: {model}", machine, summaries)
    if json_file is not None:
        write_json(
            json_file,
            machine=machine,
            server={"label": label or url, "url": url, "model": model},
            settings={"rounds": rounds, "warmup": warmup, "requests_scale": requests_scale, "seed": seed}
            | {"vocab_size": vocab_size},
            summaries=summaries,
        )


def _chosen_workloads(names: list[str]) -> list[Workload]:
    unknown = [name for name in names if name not in WORKLOADS and name != ALL_WORKLOADS]
    if unknown:
        raise BenchmarkError(f"--workload must be one of {', '.join([*WORKLOADS, ALL_WORKLOADS])}, not {unknown[0]}")
    return [workload for name, workload in WORKLOADS.items() if ALL_WORKLOADS in names or name in names]


async def _first_model(endpoint: Endpoint, timeout_s: float) -> str:
    connection = await HttpConnection.open(endpoint)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await connection.exchange(endpoint.encode("GET", "/v1/models"))
        return str(json.loads(answer.body)["data"][0]["id"])
    except (TimeoutError, ValueError, LookupError, TypeError) as error:
        raise BenchmarkError("the server's /v1/models names no model: pass --model") from error
    finally:
        connection.close()


async def _measure_all(
    endpoint: Endpoint, model: str, workloads: list[Workload], settings: Settings
) -> dict[str, Summary]:
    summaries = {}
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for workload in workloads:
            task = progress.add_task(workload.name, total=settings.num_rounds)
            summaries[workload.name] = await _measure(endpoint, model, workload, settings, progress, task)
    return summaries


async def _measure(
    endpoint: Endpoint, model: str, workload: Workload, settings: Settings, progress: Progress, task: TaskID
) -> Summary:
    for wave in range(settings.num_warmup_waves):
        requests = settings.requests(workload, f"warmup-{wave}")[: workload.concurrency]
        await _run_round(endpoint, model, workload, requests, settings.timeout_s)
    rounds = []
    for index in range(settings.num_rounds):
        requests = settings.requests(workload, f"round-{index}")
        rounds.append(await _run_round(endpoint, model, workload, requests, settings.timeout_s))
        progress.advance(task)
    return summarize(rounds)


async def _run_round(
    endpoint: Endpoint, model: str, workload: Workload, requests: list[CompletionRequest], timeout_s: float
) -> Round:
    """Encoding and reading happen outside of the measured time."""
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
                exchanges[index] = await connection.exchange(request)
    except TimeoutError:
        raise BenchmarkError(f"a request took longer than {timeout_s:g} s") from None
    finally:
        connection.close()


if __name__ == "__main__":
    typer.run(main)
