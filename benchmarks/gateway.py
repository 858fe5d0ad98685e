"""How many tokens a second does one gateway stream? Real services before a simulated worker of fixed step times.

Every stream gets a token at each step, so streams divided by the step's time is what the gateway is offered. One that
is too slow joins tokens, so what counts is whether each token still comes as a chunk of its own. Start it with
`python -m benchmarks.gateway --help`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.latency import summarize
from benchmarks.machine import Machine
from benchmarks.report import write_figures
from benchmarks.streams import PROMPT_LEN, run_streams, serving
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack

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
    write_figures(json_file, machine, cases=figures)


async def _measure(num_streams: int, rate: float, seconds: float) -> Figures:
    step_s = num_streams / rate
    num_tokens = min(max(2, round(seconds / step_s)), MAX_TOKENS)
    num_blocks = num_streams * ((PROMPT_LEN + num_tokens) // 32 + 2)
    scheduler = SchedulerConfig(max_num_seqs=num_streams, max_num_batched_tokens=8192, log_level="error")
    worker = WorkerConfig(
        model="",
        simulate=f"fixed:{step_s * 1e3:g}ms",
        max_num_seqs=num_streams,
        max_num_batched_tokens=8192,
        max_model_len=PROMPT_LEN + num_tokens,
        num_blocks=num_blocks,
        drain_timeout_s=0.0,
        log_level="error",
    )
    async with serving(scheduler, worker) as (services, endpoint):
        await run_streams(endpoint, num_streams, min(num_tokens, 50))
        before = _cpu_s(services)
        summary = summarize([await run_streams(endpoint, num_streams, num_tokens)])
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
