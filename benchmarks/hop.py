"""How long does an engine stand still because its scheduler is another process?

A scheduler process, a simulated worker whose steps take a fixed time, real gRPC between them, and a client that keeps
every slot busy. Start it with `python -m benchmarks.hop --help`.
"""

import asyncio
import re
import socket
import urllib.request
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import write_figures
from pageloom.client import EngineClient
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from pageloom.stack_config import StackConfig

PROMPT_LEN = 32
SETTLE_S = 2.0
# What the simulated worker's context holds.
MAX_TOKENS = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """`idle_ratio` is the part of the time with work in which no step ran; tokens/s are those the client got."""

    step_s: float
    num_seqs: int
    steps_in_flight: int
    idle_ratio: float
    mean_idle_s: float
    num_steps: int
    tokens_per_s: float


def main(
    steps_ms: Annotated[str, typer.Option("--step-ms", help="Times of a step in ms, separated by commas.")] = "2,10",
    seqs: Annotated[str, typer.Option("--num-seqs", help="Running sequences, separated by commas.")] = "1,16,64",
    depths: Annotated[str, typer.Option("--steps-in-flight", help="Plans in flight, separated by commas.")] = "1,2",
    seconds: Annotated[float, typer.Option(help="Time measured for each case, after two seconds to settle.")] = 8.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure the idle part of a simulated engine behind a real scheduler."""
    cases = [
        (float(step_ms) / 1e3, int(num_seqs), int(depth))
        for step_ms in steps_ms.split(",")
        for num_seqs in seqs.split(",")
        for depth in depths.split(",")
    ]
    for step_s, _, _ in cases:
        if (SETTLE_S + 1 + seconds) / step_s > MAX_TOKENS:
            raise typer.BadParameter(f"at {step_s * 1e3:g} ms a step the streams end before {seconds:g} s have passed")
    figures = [asyncio.run(_measure(*case, seconds)) for case in cases]
    machine = Machine.describe()
    _print_table(machine, figures)
    write_figures(json_file, machine, cases=figures)


async def _measure(step_s: float, num_seqs: int, depth: int, seconds: float) -> Figures:
    metrics_port = _free_port()
    config = StackConfig(
        scheduler=SchedulerConfig(max_num_steps_in_flight=depth, max_num_seqs=num_seqs, log_level="error"),
        worker=WorkerConfig(
            model="",
            simulate=f"fixed:{step_s * 1e3:g}ms",
            max_num_seqs=num_seqs,
            num_blocks=num_seqs * (MAX_TOKENS // 32 + 2),
            metrics_port=metrics_port,
            drain_timeout_s=0.0,
            log_level="error",
        ),
        gateway=None,
    )
    counts = [0]
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(LocalStack(config, lambda _: None))
        services.drain = False
        await services.wait_until_ready()
        client = await stack.enter_async_context(EngineClient(services.scheduler_address))
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_read(client, index, counts)) for index in range(num_seqs)]
            await asyncio.sleep(SETTLE_S)
            before, num_before = await _counters(metrics_port), counts[0]
            await asyncio.sleep(seconds)
            after, num_after = await _counters(metrics_port), counts[0]
            for stream in streams:
                stream.cancel()
    busy_s, idle_s, num_steps = (after[name] - before[name] for name in ("busy", "idle", "steps"))
    return Figures(
        step_s=step_s,
        num_seqs=num_seqs,
        steps_in_flight=depth,
        idle_ratio=idle_s / (idle_s + busy_s),
        mean_idle_s=idle_s / num_steps,
        num_steps=int(num_steps),
        tokens_per_s=(num_after - num_before) / seconds,
    )


async def _read(client: EngineClient, index: int, counts: list[int]) -> None:
    request = GenerateRequest(
        request_id=f"stream-{index}",
        prompt_token_ids=tuple(3 + (index * 7 + at) % 1000 for at in range(PROMPT_LEN)),
        sampling=SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True),
    )
    async for event in client.generate(request):
        counts[0] += len(getattr(event, "token_ids", ()))


async def _counters(port: int) -> dict[str, float]:
    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    text = await asyncio.to_thread(scrape)
    names = {
        "busy": "pageloom_worker_busy_seconds_total",
        "idle": "pageloom_worker_idle_seconds_total",
        "steps": "pageloom_worker_step_seconds_count",
    }
    return {
        key: sum(float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))
        for key, name in names.items()
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _print_table(machine: Machine, figures: list[Figures]) -> None:
    table = Table(title="Engine idle between steps", caption=str(machine), title_justify="left")
    for heading in ("step ms", "seqs", "in flight", "idle", "mean idle us", "steps", "client tokens/s"):
        table.add_column(heading, justify="right")
    for figure in figures:
        table.add_row(
            f"{figure.step_s * 1e3:g}",
            str(figure.num_seqs),
            str(figure.steps_in_flight),
            f"{figure.idle_ratio:.2%}",
            f"{figure.mean_idle_s * 1e6:.0f}",
            f"{figure.num_steps:,}",
            f"{figure.tokens_per_s:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
