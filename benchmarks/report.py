"""How are figures shown? The table for people, and JSON for keeping and comparing."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.latency import Distribution, Summary
from benchmarks.machine import Machine
from benchmarks.workloads import WORKLOADS


def new_table(title: str, caption: str) -> Table:
    """Without rows and columns."""
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def print_table(console: Console, title: str, machine: Machine, summaries: dict[str, Summary]) -> None:
    """Fits a terminal of 80 columns: each latency shows its p50 above its p99."""
    table = new_table(title, _caption(machine, summaries))
    table.add_column("workload", no_wrap=True)
    for heading in ("output\ntok/s", "prompt\ntok/s", "cached", "", "TTFT\nms", "inter-token\nms", "per token\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in summaries.items():
        table.add_row(
            name,
            f"{summary.output_tokens_per_s:,.1f}",
            f"{summary.prompt_tokens_per_s:,.0f}",
            f"{summary.cached_prompt_ratio:.0%}",
            "p50\np99",
            *(_milliseconds(distribution) for distribution in (summary.ttft_s, summary.itl_s, summary.tpot_s)),
        )
    console.print(table)


def write_json(
    path: Path,
    *,
    machine: Machine,
    server: dict[str, str],
    settings: dict[str, float | int],
    summaries: dict[str, Summary],
) -> None:
    """Times in seconds, rates per second, ratios between 0 and 1."""
    workloads = [
        {"name": name, "description": WORKLOADS[name].description, "concurrency": WORKLOADS[name].concurrency}
        | asdict(summary)
        for name, summary in summaries.items()
    ]
    write_figures(path, machine, server=server, settings=settings, workloads=workloads)


def write_figures(path: Path | None, machine: Machine, **figures: object) -> None:
    """To the file that --json names, if it does; dataclasses become objects."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine.to_json(), **figures}, indent=2, default=_plain) + "\n")


def _plain(value: object) -> dict[str, Any]:
    assert is_dataclass(value)
    assert not isinstance(value, type)
    return asdict(value)


def _milliseconds(distribution: Distribution | None) -> str:
    if distribution is None:
        return "–"
    return f"{distribution.p50 * 1e3:,.1f}\n{distribution.p99 * 1e3:,.1f}"


def _caption(machine: Machine, summaries: dict[str, Summary]) -> str:
    busiest = max((summary.client_cpu_ratio for summary in summaries.values()), default=0.0)
    return f"{machine}\nthis client used at most {busiest:.1%} of one core"
