"""How much memory does each process of a running `pageloom serve` hold at rest?

Start it with `python -m benchmarks.memory --help`.
"""

import re
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.machine import Machine
from benchmarks.report import write_figures

SERVICES = {"gateway": "gateway", "scheduler_svc": "scheduler", "worker_svc": "worker"}
# Heartbeats and health checks stay far below this share of one core; a running request does not.
BUSY_CPU_RATIO = 0.2
OBSERVATION_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """`resident_bytes` counts shared pages in full; `unique_bytes` is what would be freed if the
    process ended; `peak_bytes` is the most that was ever resident."""

    name: str
    pid: int
    resident_bytes: int
    unique_bytes: int
    peak_bytes: int


def main(
    pid: Annotated[
        int | None, typer.Option(help="Process id of `pageloom serve`. Default: the only one that runs.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Show the resident memory of `pageloom serve` and of its services, which must be idle."""
    try:
        processes = _stack(_find_serve() if pid is None else _process(pid))
        _require_rest(list(processes.values()))
        figures = [_memory(name, process) for name, process in processes.items()]
    except (BenchmarkError, psutil.Error) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    machine = Machine.describe()
    _print_table(machine, figures)
    write_figures(json_file, machine, processes=figures)


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess as error:
        raise BenchmarkError(f"--pid must be the process id of `pageloom serve`; there is no process {pid}") from error


def _find_serve() -> psutil.Process:
    found = [process for process in psutil.process_iter(["cmdline"]) if _is_serve(process.info["cmdline"] or [])]
    if len(found) != 1:
        pids = ", ".join(str(process.pid) for process in found)
        raise BenchmarkError(
            f"several stacks run, pass one with --pid: {pids}" if found else "no `pageloom serve` is running"
        )
    return found[0]


def _is_serve(command: list[str]) -> bool:
    """`python -m pageloom serve …` or `python …/bin/pageloom serve …`."""
    return any(Path(program).name == "pageloom" and verb == "serve" for program, verb in pairwise(command))


def _stack(serve: psutil.Process) -> dict[str, psutil.Process]:
    """`serve` itself and its services, by name."""
    stack = {"serve": serve}
    for child in serve.children(recursive=True):
        module = re.search(r" -m (\w+) ", " ".join(child.cmdline()))
        if module and module[1] in SERVICES:
            stack[SERVICES[module[1]]] = child
    missing = [name for name in SERVICES.values() if name not in stack]
    if missing:
        raise BenchmarkError(f"process {serve.pid} is no complete stack: {', '.join(missing)} not found below it")
    return stack


def _require_rest(processes: list[psutil.Process]) -> None:
    before_s = sum(_cpu_s(process) for process in processes)
    time.sleep(OBSERVATION_S)
    ratio = (sum(_cpu_s(process) for process in processes) - before_s) / OBSERVATION_S
    if ratio > BUSY_CPU_RATIO:
        raise BenchmarkError(f"the stack uses {ratio:.0%} of a core: it is not at rest, wait for its requests to end")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory(name: str, process: psutil.Process) -> ProcessMemory:
    memory = process.memory_full_info()
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert peak is not None, "Linux reports VmHWM for every user process"
    return ProcessMemory(
        name=name,
        pid=process.pid,
        resident_bytes=memory.rss,
        unique_bytes=memory.uss,
        peak_bytes=int(peak[1]) * 1024,
    )


def _print_table(machine: Machine, figures: list[ProcessMemory]) -> None:
    table = Table(title="memory at rest, MB (10^6 bytes)", caption=str(machine), caption_justify="left")
    table.add_column("process")
    for heading in ("pid", "resident", "unique", "peak"):
        table.add_column(heading, justify="right")
    for figure in figures:
        sizes = (figure.resident_bytes, figure.unique_bytes, figure.peak_bytes)
        table.add_row(figure.name, str(figure.pid), *(f"{size / 1e6:,.1f}" for size in sizes))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
