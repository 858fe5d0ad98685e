"""How fast does a running OpenAI-compatible server answer? A load generator: `python -m benchmarks.serve --help`.

It drives Pageloom, vLLM or llama.cpp's server alike over /v1/completions, with fixed token-id prompts,
greedy, each request to its full length. What the figures mean is in `latency.py`.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint
from benchmarks.latency import Summary, summarize
from benchmarks.load import ALL_WORKLOADS, Settings, chosen_workloads, first_model, run_round, warm_up
from benchmarks.machine import Machine
from benchmarks.report import print_table, write_json
from benchmarks.workloads import NUM_RESERVED_IDS, WORKLOADS, Workload


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
        chosen = chosen_workloads(workload or [ALL_WORKLOADS])
        endpoint = Endpoint.parse(url, api_key)
        model = model or uvloop.run(first_model(endpoint, timeout))
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
    await warm_up(endpoint, model, workload, settings)
    rounds = []
    for index in range(settings.num_rounds):
        requests = settings.requests(workload, f"round-{index}")
        rounds.append(await run_round(endpoint, model, workload, requests, settings.timeout_s))
        progress.advance(task)
    return summarize(rounds)


if __name__ == "__main__":
    typer.run(main)
