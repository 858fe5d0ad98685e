"""Many random histories on all cores: `python -m tests.scheduler.core.soak`, or `make soak`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.scheduler.core.histories import run_history

# Histories that a process takes at a time, and after which a line is printed where there is no terminal.
CHUNK = 50
NUM_PER_LINE = 5000


class Outcome(NamedTuple):
    """Of a chunk of histories: what they did, and how the first that failed did."""

    counts: Counter[str]
    failure: str = ""


def main(
    histories: Annotated[int, typer.Option(help="How many to run.", min=1)] = 100_000,
    first: Annotated[int, typer.Option(help="Seed of the first.", min=0)] = 1_000_000,
    processes: Annotated[int, typer.Option(help="Processes. Default: one for each core.", min=1)] = os.cpu_count() or 1,
) -> None:
    """Run random histories of the scheduler's core, each replayed; exit code 1 at the first that goes wrong."""
    started_s = time.monotonic()
    chunks = [range(at, min(at + CHUNK, first + histories)) for at in range(first, first + histories, CHUNK)]
    done: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for outcome in _watched(pool.imap_unordered(run_chunk, chunks), histories):
            done += outcome.counts
            if outcome.failure:
                print(outcome.failure, file=sys.stderr)
                raise typer.Exit(1)
    print(", ".join(f"{count:,} {name}" for name, count in done.items()))
    print(f"all right, and identical when replayed, in {time.monotonic() - started_s:.0f} s on {processes} processes")


def run_chunk(seeds: range) -> Outcome:
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = run_history(seed)
        except Exception:
            return Outcome(counts, traceback.format_exc())
        stats = world.scheduler.stats()
        counts += Counter(
            {
                "histories": 1,
                "steps": world.num_steps,
                "choices": len(world.streams),
                "preemptions": stats.num_preemptions,
                "lost workers": stats.num_lost_workers,
            }
        )
    return Outcome(counts)


def _watched(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Shows how far it is: a bar on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("Histories"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    num_done = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("histories", total=total)
        for outcome in outcomes:
            lines_before, num_done = num_done // NUM_PER_LINE, num_done + outcome.counts["histories"]
            progress.update(task, completed=num_done)
            if not console.is_terminal and num_done // NUM_PER_LINE > lines_before:
                console.print(f"{num_done:,} of {total:,} histories")
            yield outcome


if __name__ == "__main__":
    typer.run(main)
