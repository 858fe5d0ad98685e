"""How many tokens a second does one gateway stream? Real services before a simulated worker of fixed step times.

Every stream gets a token at each step, so streams divided by the step's time is what the gateway is offered. One that
is too slow joins tokens, so what counts is whether each token still comes as a chunk of its own. Start it with
`python -m benchmarks.gateway --help`.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.latency import Summary, summarize
from benchmarks.load import run_round
from benchmarks.machine import Machine
from benchmarks.workloads import NUM_RESERVED_IDS, CompletionRequest, Lengths, Workload
from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack, StackConfig
from pageloom.status import GatewayReady

PROMPT_LEN = 16
TIMEOUT_S = 300.0
# What the simulated worker's context holds.
MAX_TOKENS = 8_000
# Chunks of more tokens mean that the gateway, or the client, does not keep up.
MOST_TOKENS_PER_CHUNK = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """CPU seconds are of the whole process, gRPC's threads among them."""

    num_streams: int
    offered_tokens_per_s: float
    tokens_per_s: float
    tokens_per_chunk: float
    gateway_cpu_s_per_token: float
    scheduler_cpu_s_per_token: float
    client_cpu_ratio: float

    @property
    def keeps_up(self) -> bool:
        return self.tokens_per_chunk <= MOST_TOKENS_PER_CHUNK


def main(
    streams: Annotated[str, typer.Option("--streams", help="Streams, separated by commas.")] = "1,64,256",
    rates: Annotated[
        str, typer.Option("--rates", help="Tokens offered per second, separated by commas.")
    ] = "5000,10000,15000,20000,25000,30000",
    seconds: Annotated[float, typer.Option(help="How long each case lasts.", min=0.1)] = 4.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Offer tokens at rising rates, and show what the gateway makes of them and what a token costs it."""
    figures = [
        uvloop.run(_measure(num_streams, rate, seconds))
        for num_streams in map(int, streams.split(","))
        for rate in map(float, rates.split(","))
    ]
    machine = Machine.describe()
    _print_table(machine, figures)
    if json_file is not None:
        document = {"machine": machine.to_json(), "cases": [asdict(one) for one in figures]}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document, indent=2) + "\n")


async def _measure(num_streams: int, rate: float, seconds: float) -> Figures:
    step_s = num_streams / rate
    num_tokens = min(max(2, round(seconds / step_s)), MAX_TOKENS)
    num_blocks = num_streams * ((PROMPT_LEN + num_tokens) // 32 + 2)
    config = StackConfig(
        scheduler=SchedulerConfig(max_num_seqs=num_streams, max_num_batched_tokens=8192, log_level="error"),
        worker=WorkerConfig(
            model="",
            simulate=f"fixed:{step_s * 1e3:g}ms",
            max_num_seqs=num_streams,
            max_num_batched_tokens=8192,
            max_model_len=PROMPT_LEN + num_tokens,
            num_blocks=num_blocks,
            drain_timeout_s=0.0,
            log_level="error",
        ),
        gateway=GatewayConfig(model="", served_model_names=("simulated",), port=0, log_level="error"),
    )
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(LocalStack(config, lambda _: None))
        services.drain = False
        await services.wait_until_ready()
        endpoint = Endpoint.parse(services.ready(GatewayReady).url)
        await _until_it_serves(endpoint)
        await _run(endpoint, num_streams, min(num_tokens, 50))
        before = _cpu_s(services)
        summary = await _run(endpoint, num_streams, num_tokens)
        after = _cpu_s(services)
    cpu_s = {name: (after[name] - before[name]) / (num_streams * num_tokens) for name in after}
    return Figures(
        num_streams=num_streams,
        offered_tokens_per_s=rate,
        tokens_per_s=summary.output_tokens_per_s,
        tokens_per_chunk=summary.tokens_per_chunk,
        gateway_cpu_s_per_token=cpu_s["gateway"],
        scheduler_cpu_s_per_token=cpu_s["scheduler"],
        client_cpu_ratio=summary.client_cpu_ratio,
    )


async def _until_it_serves(endpoint: Endpoint) -> None:
    """The gateway hears of the worker a little after it listens."""
    connection = await HttpConnection.open(endpoint)
    try:
        while (await connection.exchange(endpoint.encode("GET", "/ready"))).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        connection.close()


async def _run(endpoint: Endpoint, num_streams: int, num_tokens: int) -> Summary:
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
    return summarize([await run_round(endpoint, "simulated", workload, requests, TIMEOUT_S)])


def _cpu_s(services: LocalStack) -> dict[str, float]:
    seconds = {}
    for name in ("gateway", "scheduler"):
        times = psutil.Process(services.pid(name)).cpu_times()
        seconds[name] = float(times.user + times.system)
    return seconds


def _print_table(machine: Machine, figures: list[Figures]) -> None:
    table = Table(caption=str(machine), caption_justify="left")
    headings = ("streams", "offered/s", "streamed/s", "tokens per chunk", "gateway µs", "scheduler µs", "client")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in figures:
        table.add_row(
            str(one.num_streams),
            f"{one.offered_tokens_per_s:,.0f}",
            f"{one.tokens_per_s:,.0f}",
            f"{one.tokens_per_chunk:.2f}" + ("" if one.keeps_up else " (joined)"),
            f"{one.gateway_cpu_s_per_token * 1e6:.1f}",
            f"{one.scheduler_cpu_s_per_token * 1e6:.1f}",
            f"{one.client_cpu_ratio:.0%}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
