"""How does this server compare with another on this machine? `python -m benchmarks.compare --help`.

In each round every server is started, warmed up, measured and stopped, one after the other: they never
share the cores, and a machine that gets slower does so for all. The first server is compared with each
of the others: the ratio of a figure is the median of the ratios within the rounds.
"""

import math
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from benchmarks.errors import BenchmarkError
from benchmarks.latency import Distribution, Summary, summarize
from benchmarks.load import ALL_WORKLOADS, Settings, chosen_workloads, run_round, warm_up
from benchmarks.machine import Machine
from benchmarks.report import new_table, write_figures
from benchmarks.server_process import ServerCommand, free_port, ready, started, with_port
from benchmarks.workloads import NUM_RESERVED_IDS, WORKLOADS, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of one server: seconds from start to first token, memory after the load, a round of each workload."""

    ready_s: float
    resident_bytes: int
    summaries: dict[str, Summary]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A row of the table: one figure of each server, by round."""

    name: str
    unit: str
    by_server: dict[str, tuple[float, ...]]

    def median(self, label: str) -> float:
        return statistics.median(self.by_server[label])

    def ratio(self, label: str, other: str) -> float:
        """NaN if one of the other's is 0, as the time between tokens that come in one chunk."""
        pairs = list(zip(self.by_server[label], self.by_server[other], strict=True))
        if not all(another for _, another in pairs):
            return math.nan
        return statistics.median(one / another for one, another in pairs)


def main(
    server: Annotated[
        list[str], typer.Option(help="LABEL=COMMAND, with {port} for the port to listen on. Twice or more; ours first.")
    ],
    workload: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated: {', '.join(WORKLOADS)}, or {ALL_WORKLOADS} (default).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each server is started and measured.")] = 3,
    warmup: Annotated[int, typer.Option(min=0, help="Unmeasured waves before each workload.")] = 1,
    requests_scale: Annotated[
        float, typer.Option(min=0.0, help="Multiplies the requests of a round: 0.1 for a quick look.")
    ] = 1.0,
    vocab_size: Annotated[
        int, typer.Option(min=2 * NUM_RESERVED_IDS, help="Prompts use ids below this and above the special tokens.")
    ] = 49152,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a start or a request may take.")] = 600.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Start servers in turn, measure each, and show how the first compares with the others."""
    settings = Settings(
        num_rounds=1,
        num_warmup_waves=warmup,
        requests_scale=requests_scale,
        seed=0,
        vocab_size=vocab_size,
        timeout_s=timeout,
    )
    console = Console(stderr=True)
    try:
        servers = _servers(server)
        workloads = chosen_workloads(workload or [ALL_WORKLOADS])
        runs: dict[str, list[Run]] = {each.label: [] for each in servers}
        for index in range(rounds):
            for each in servers:
                console.print(f"round {index + 1} of {rounds}: {each.label}")
                runs[each.label].append(_run(each, workloads, settings, index))
    except BenchmarkError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    machine = Machine.describe()
    _print_table(machine, _figures(workloads, runs), list(runs))
    write_figures(json_file, machine, servers=servers, runs=runs)


def _servers(texts: list[str]) -> list[ServerCommand]:
    servers = [ServerCommand.parse(text) for text in texts]
    if len(servers) < 2 or len({each.label for each in servers}) < len(servers):
        raise BenchmarkError("--server must be given for two servers or more, each with a label of its own")
    return servers


def _run(server: ServerCommand, workloads: list[Workload], settings: Settings, index: int) -> Run:
    port = free_port()
    with started(with_port(server, port)) as process:
        return uvloop.run(_measure(process, port, workloads, settings, index))


async def _measure(
    process: subprocess.Popen[bytes], port: int, workloads: list[Workload], settings: Settings, index: int
) -> Run:
    server = await ready(process, port, settings.timeout_s)
    summaries = {}
    for workload in workloads:
        await warm_up(server.endpoint, server.model, workload, settings)
        requests = settings.requests(workload, f"round-{index}")
        each = await run_round(server.endpoint, server.model, workload, requests, settings.timeout_s)
        summaries[workload.name] = summarize([each])
    return Run(ready_s=server.ready_s, resident_bytes=server.resident_bytes(), summaries=summaries)


def _figures(workloads: list[Workload], runs: dict[str, list[Run]]) -> list[Figure]:
    def figure(name: str, unit: str, of: Callable[[Run], float]) -> Figure:
        return Figure(name=name, unit=unit, by_server={label: tuple(map(of, each)) for label, each in runs.items()})

    def of_workload(name: str, unit: str, of: Callable[[Summary], float]) -> Figure:
        return figure(name, unit, lambda run: of(run.summaries[name]))

    figures = [
        figure("start to ready", "s", lambda run: run.ready_s),
        figure("resident memory", "MB", lambda run: run.resident_bytes / 1e6),
    ]
    for workload in workloads:
        figures.append(of_workload(workload.name, "output tok/s", lambda summary: summary.output_tokens_per_s))
        figures.append(of_workload(workload.name, "TTFT p50 ms", lambda summary: _p50_ms(summary.ttft_s)))
        if workload.output.mean > 1:
            figures.append(of_workload(workload.name, "ITL p50 ms", lambda summary: _p50_ms(summary.itl_s)))
    return figures


def _p50_ms(distribution: Distribution | None) -> float:
    """NaN without samples: a server may send a whole answer in one chunk."""
    return math.nan if distribution is None else distribution.p50 * 1e3


def _print_table(machine: Machine, figures: list[Figure], labels: list[str]) -> None:
    first, *others = labels
    table = new_table("medians of the rounds", str(machine))
    table.add_column("workload")
    table.add_column("figure")
    for heading in (*labels, *(f"{first} ÷ {other}" for other in others)):
        table.add_column(heading, justify="right")
    for figure in figures:
        medians = [_shown(figure.median(label), 1) for label in labels]
        ratios = [_shown(figure.ratio(first, other), 2) for other in others]
        table.add_row(figure.name, figure.unit, *medians, *ratios)
    Console().print(table)


def _shown(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


if __name__ == "__main__":
    typer.run(main)
