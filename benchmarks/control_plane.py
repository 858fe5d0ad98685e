"""What does a step cost the processes beside the model? CPU time and wake-ups while all streams decode.

Real services on this machine, behind them the default model or a simulated worker of fixed step times. Start it with
`python -m benchmarks.control_plane --help`.
"""

import asyncio
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import psutil
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.machine import Machine
from benchmarks.report import write_figures
from benchmarks.streams import run_streams, serving
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.local_stack import LocalStack

SERVICES = ("gateway", "scheduler", "worker")
# Prompts, and what the first steps bring into the caches, are over by then.
SETTLE_S = 2.0
MAX_TOKENS = 4_000
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of a whole process, gRPC's threads among them. A wake-up is a thread that ran again after it had waited."""

    user_s: float
    system_s: float
    num_wakeups: int

    @classmethod
    def of(cls, pid: int) -> Self:
        times = psutil.Process(pid).cpu_times()
        return cls(user_s=times.user, system_s=times.system, num_wakeups=sum(map(_num_wakeups, _threads(pid))))

    def per_step(self, before: Self, num_steps: int) -> Self:
        """What was used since `before`."""
        return type(self)(
            user_s=(self.user_s - before.user_s) / num_steps,
            system_s=(self.system_s - before.system_s) / num_steps,
            num_wakeups=round((self.num_wakeups - before.num_wakeups) / num_steps),
        )

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All of `usage` is of one step."""

    simulated: bool
    num_streams: int
    num_steps: int
    step_s: float
    usage: dict[str, Usage]

    @property
    def control_plane_ratio(self) -> float:
        """Part of one core that gateway and scheduler use."""
        return (self.usage["gateway"].cpu_s + self.usage["scheduler"].cpu_s) / self.step_s


def main(
    streams: Annotated[str, typer.Option("--streams", help="Streams, separated by commas.")] = "1,8,32",
    step_ms: Annotated[
        str, typer.Option("--step-ms", help="Step times of the simulated worker in ms, one for each of --streams.")
    ] = "8.4,15,33",
    real: Annotated[bool, typer.Option(help="Also with the default model.")] = True,
    seconds: Annotated[float, typer.Option(help="Time measured for each case.", min=0.1)] = 8.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Show what gateway, scheduler and worker use for a step while nothing but decodes runs."""
    nums_streams, steps_s = list(map(int, streams.split(","))), [float(each) / 1e3 for each in step_ms.split(",")]
    if len(nums_streams) != len(steps_s):
        raise typer.BadParameter(f"--step-ms has {len(steps_s)} values, --streams has {len(nums_streams)}")
    cases: list[tuple[int, float | None]] = list(zip(nums_streams, steps_s, strict=True))
    if real:
        cases += [(num_streams, None) for num_streams in nums_streams]
    figures = [uvloop.run(_measure(num_streams, step_s, seconds)) for num_streams, step_s in cases]
    machine = Machine.describe()
    _print_table(machine, figures)
    write_figures(json_file, machine, cases=figures)


async def _measure(num_streams: int, step_s: float | None, seconds: float) -> Figures:
    """`step_s` is the simulated worker's; None: the default model runs."""
    worker = WorkerConfig(
        model="",
        simulate=None if step_s is None else f"fixed:{step_s * 1e3:g}ms",
        max_num_seqs=num_streams,
        max_model_len=MAX_TOKENS + 96,
        drain_timeout_s=0.0,
        log_level="error",
    )
    async with serving(SchedulerConfig(max_num_seqs=num_streams, log_level="error"), worker) as (services, endpoint):
        streaming = asyncio.create_task(run_streams(endpoint, num_streams, MAX_TOKENS))
        await asyncio.sleep(SETTLE_S)
        num_before = await _num_tokens(endpoint)
        before = _usage(services)
        await asyncio.sleep(seconds)
        after = _usage(services)
        num_after = await _num_tokens(endpoint)
        streaming.cancel()
        with suppress(asyncio.CancelledError):
            await streaming
            raise typer.BadParameter(f"the streams ended before {seconds:g} s had passed")
    num_steps = round((num_after - num_before) / num_streams)
    return Figures(
        simulated=step_s is not None,
        num_streams=num_streams,
        num_steps=num_steps,
        step_s=seconds / num_steps,
        usage={name: after[name].per_step(before[name], num_steps) for name in SERVICES},
    )


def _usage(services: LocalStack) -> dict[str, Usage]:
    return {name: Usage.of(services.pid(name)) for name in SERVICES}


async def _num_tokens(endpoint: Endpoint) -> float:
    """That the gateway has streamed so far."""
    connection = await HttpConnection.open(endpoint)
    try:
        text = (await connection.exchange(endpoint.encode("GET", "/metrics"))).body.decode()
    finally:
        connection.close()
    (count,) = re.findall(r"^pageloom_generation_tokens_total{.*} (\S+)$", text, re.MULTILINE)
    return float(count)


def _threads(pid: int) -> list[Path]:
    return [Path(f"/proc/{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]


def _num_wakeups(thread: Path) -> int:
    # psutil counts the main thread's alone.
    (count,) = _SWITCHES.findall((thread / "status").read_text())
    return int(count)


def _print_table(machine: Machine, figures: list[Figures]) -> None:
    table = Table(title="CPU ms (wake-ups) of a step, and part of a core", title_justify="left", caption=str(machine))
    for heading in ("worker", "streams", "step ms", *SERVICES, "beside worker"):
        table.add_column(heading, justify="right")
    for one in figures:
        table.add_row(
            "simulated" if one.simulated else "model",
            str(one.num_streams),
            f"{one.step_s * 1e3:.2f}",
            *(f"{one.usage[name].cpu_s * 1e3:.2f} ({one.usage[name].num_wakeups})" for name in SERVICES),
            f"{one.control_plane_ratio:.1%}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
