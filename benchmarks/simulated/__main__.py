"""`python -m benchmarks.simulated NAME`: tables of what the scheduler's parts are worth, and JSON on request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import write_figures
from benchmarks.simulated import fairness, paged, placement, prefix
from pageloom.policies import SchedulingPolicy
from scheduler_svc.simulation.workload import load_trace

app = typer.Typer(
    help="What are the scheduler's parts worth? In virtual time, on GPUs that are not here.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()

AzureTrace = Annotated[str, typer.Option(help="An Azure conversation trace: the excerpt, or the whole file.")]
MooncakeTrace = Annotated[str, typer.Option(help="A Mooncake conversation trace: the excerpt, or the whole file.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


@app.command("paged")
def run_paged(
    trace: AzureTrace = "azure-conv-excerpt",
    workload: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated: {', '.join(paged.WORKLOADS)}. Default: all.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens in a KV block.")] = 16,
    json_file: JsonFile = None,
) -> None:
    """Paged against contiguous KV memory: waste, concurrency, sustained rate."""
    unknown = set(workload or ()) - set(paged.WORKLOADS)
    if unknown:
        raise typer.BadParameter(f"no workload {', '.join(unknown)}; there are {', '.join(paged.WORKLOADS)}")
    results: dict[str, list[paged.Figures]] = {}
    for name in workload or paged.WORKLOADS:
        figures = results[name] = list(paged.measure(paged.WORKLOADS[name], trace, block_size))
        ours = figures[0]
        _print_table(
            f"{paged.WORKLOADS[name].title}, blocks of {block_size}",
            "policy|KV\nwaste|lost to\nholes|holds\ntokens|\nrunning|paged\n×|sustained\nrequests/s|paged\n×",
            (
                (
                    row.kv_policy + (f", {row.allocator}" if row.kv_policy in ("pow2", "oracle") else ""),
                    f"{row.waste:.2%}",
                    f"{row.fragmented:.1%}",
                    f"{row.tokens_when_queued:.1%}",
                    f"{row.mean_running:.2f}",
                    f"{ours.mean_running / row.mean_running:.1f}",
                    f"{row.sustained_rate:.2f}",
                    f"{ours.sustained_rate / row.sustained_rate:.1f}",
                )
                for row in figures
            ),
        )
    write_figures(json_file, Machine.describe(), results=results)


@app.command("prefix")
def run_prefix(
    trace: AzureTrace = "azure-conv-excerpt",
    mooncake_trace: MooncakeTrace = "mooncake-conv-excerpt",
    json_file: JsonFile = None,
) -> None:
    """The prefix cache: prefill speed-up, cost without hits, hits of a real trace."""
    speed_ups = [prefix.speed_up(*hardware, own_len) for hardware in prefix.HARDWARE for own_len in prefix.OWN_LENS]
    _print_table(
        f"Prefill of prompts that share {prefix.PREFIX_LEN} tokens",
        "hardware|prompts|own\ntokens|without\nms|with\nms|speed\nup|bound|of\nbound",
        (
            (
                f"{row.gpu} {row.model}",
                str(row.num_requests),
                str(row.own_len),
                f"{1000 * row.plain_s:,.1f}",
                f"{1000 * row.cached_s:,.1f}",
                f"{row.ratio:.2f}",
                f"{row.bound:.1f}",
                f"{row.ratio / row.bound:.0%}",
            )
            for row in speed_ups
        ),
    )
    cost = prefix.cost_without_hits(trace)
    console.print(
        f"Without hits the cache makes a request take {1e6 * (cost.cached_s - cost.plain_s):+,.0f} µs of CPU time: "
        f"{cost.share:+.2%} of its {1000 * cost.gpu_s:.0f} ms of GPU time"
    )
    mooncake = load_trace(mooncake_trace, num_requests=None, request_rate=None, seed=0)
    hits = prefix.hits(mooncake)
    console.print(
        f"Of {mooncake.name}, with memory for all, {hits.simulated:.1%} of prompt tokens are found; an endless cache "
        f"would find {hits.infinite_tokens:.1%} of tokens, {hits.infinite_blocks:.1%} of blocks"
    )
    write_figures(json_file, Machine.describe(), results={"speed_ups": speed_ups, "cost": cost, "hits": hits})


@app.command("placement")
def run_placement(
    mooncake_trace: MooncakeTrace = "mooncake-conv-excerpt",
    num_requests: Annotated[int, typer.Option(help="How many of the trace's first requests to take.")] = 4000,
    num_blocks: Annotated[
        int | None, typer.Option(help="KV blocks of 128 tokens of each worker. Default: what an H200 has.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Four workers behind one scheduler: which placement finds most of the prompts in a cache."""
    trace = load_trace(mooncake_trace, num_requests=num_requests, request_rate=None, seed=0)
    figures = list(placement.measure(trace, num_blocks))
    _print_table(
        f"{placement.NUM_WORKERS} workers of {placement.GPU} with {placement.MODEL}, "
        f"{figures[0].num_kv_tokens:,} tokens of KV memory each",
        "placement|hit\nratio|× round-\nrobin|TTFT ms\nmean|p50|p99|busy",
        (
            (
                row.placement,
                f"{row.prefix_hit_ratio:.1%}",
                f"{row.prefix_hit_ratio / max(figures[0].prefix_hit_ratio, 1e-9):.2f}",
                f"{1000 * row.ttft_s.mean:,.0f}",
                f"{1000 * row.ttft_s.p50:,.0f}",
                f"{1000 * row.ttft_s.p99:,.0f}",
                f"{row.busy_share:.0%}",
            )
            for row in figures
        ),
    )
    write_figures(json_file, Machine.describe(), results=figures)


@app.command("fairness")
def run_fairness(json_file: JsonFile = None) -> None:
    """Two tenants, one of which sends ten times what it should."""
    results: dict[str, Any] = {}
    for setting in fairness.SETTINGS:
        shares = [fairness.backlogged(setting, policy) for policy in (SchedulingPolicy.fair, SchedulingPolicy.fcfs)]
        _print_table(
            f"Both backlogged, one sends 10 times the other; {setting.title}",
            "policy|light tokens|heavy tokens|Jain index",
            (
                (
                    row.scheduling_policy,
                    f"{row.num_light_tokens:,}",
                    f"{row.num_heavy_tokens:,}",
                    f"{row.jain_index:.3f}",
                )
                for row in shares
            ),
        )
        latencies = fairness.latencies(setting)
        _print_table(
            f"TTFT of a tenant with a tenth of the capacity; {setting.title}",
            "policy|neighbour|its\nreq/s|TTFT ms\nmean|p50|p90|p99",
            (
                (
                    row.scheduling_policy,
                    row.neighbour,
                    f"{row.heavy_rate:.1f}",
                    *(f"{1000 * value:,.0f}" for value in asdict(row.ttft_s).values()),
                )
                for row in latencies
            ),
        )
        results[setting.title] = {"shares": shares, "latencies": latencies}
    write_figures(json_file, Machine.describe(), results=results)


def _print_table(title: str, headings: str, rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings.split("|")):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    app()
