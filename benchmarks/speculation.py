"""What does speculative decoding gain for one client? `python -m benchmarks.speculation --help`.

Two servers of the same model run side by side, one with speculation; a single client asks both the same, in turn, so
that a machine that gets slower does so for both. Their answers must be the same text. The first round fills the prefix
caches and is not measured.
"""

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import typer
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.machine import Machine
from benchmarks.repeating_prompts import REPEATING, VARIED
from benchmarks.server_process import ServerCommand, free_port, ready, started

_READY_TIMEOUT_S = 300.0
_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "step_seconds", "undrafted_step_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """Questions, and how they are sampled: what is drawn at random repeats itself less than the likeliest."""

    name: str
    prompts: tuple[str, ...]
    temperature: float


SETS = (
    PromptSet(name="repeating", prompts=REPEATING, temperature=0.0),
    PromptSet(name="varied", prompts=VARIED, temperature=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one question, and how long it took from request to last byte."""

    text: str
    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A running server, and where its scheduler's metrics are."""

    endpoint: Endpoint
    metrics: Endpoint
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Tokens per second of both servers over one set, and the speculating one's counters."""

    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    counters: dict[str, float]


def main(
    serve: Annotated[str, typer.Option(help="Command of both servers, without ports.")] = "pageloom serve",
    speculation: Annotated[str, typer.Option(help="What is added for one.")] = "--speculative-method ngram",
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each set, for a quick look.")] = 20,
) -> None:
    """Measure single-stream tokens/s with and without speculation, on answers that repeat their question and others."""
    try:
        results = uvloop.run(_measure(serve, speculation, rounds, max_tokens, num_prompts))
    except BenchmarkError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    _print(Console(), f"{serve} {speculation}", results)


async def _measure(
    serve: str, speculation: str, num_rounds: int, max_tokens: int, num_prompts: int
) -> dict[str, list[Round]]:
    results: dict[str, list[Round]] = {prompt_set.name: [] for prompt_set in SETS}
    async with _running("plain", serve) as plain, _running("speculative", f"{serve} {speculation}") as speculative:
        for index in range(num_rounds + 1):
            for prompt_set in SETS:
                measured = await _run_round(plain, speculative, prompt_set, max_tokens, num_prompts)
                if index:
                    results[prompt_set.name].append(measured)
    return results


@contextlib.asynccontextmanager
async def _running(label: str, serve: str) -> AsyncIterator[Target]:
    port, metrics_port = free_port(), free_port()
    command = ServerCommand(label=label, command=f"{serve} --port {port} --scheduler-metrics-port {metrics_port}")
    with started(command) as process:
        server = await ready(process, port, _READY_TIMEOUT_S)
        metrics = Endpoint.parse(f"http://127.0.0.1:{metrics_port}")
        yield Target(endpoint=server.endpoint, metrics=metrics, model=server.model)


async def _run_round(
    plain: Target, speculative: Target, prompt_set: PromptSet, max_tokens: int, num_prompts: int
) -> Round:
    before = await _counters(speculative)
    pairs: list[tuple[Answer, Answer]] = []
    for seed, prompt in enumerate(prompt_set.prompts[:num_prompts]):
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": prompt_set.temperature,
            "seed": seed,
        }
        pair = (await _ask(plain, body), await _ask(speculative, body))
        if pair[0].text != pair[1].text:
            raise BenchmarkError(f"with speculation the answer to {prompt[:60]!r} is another")
        pairs.append(pair)
    after = await _counters(speculative)
    num_tokens = sum(answer.num_tokens for answer, _ in pairs)
    return Round(
        plain_tokens_per_s=num_tokens / sum(answer.seconds for answer, _ in pairs),
        speculative_tokens_per_s=num_tokens / sum(answer.seconds for _, answer in pairs),
        counters={name: after[name] - before[name] for name in _COUNTERS},
    )


async def _ask(target: Target, body: dict[str, object]) -> Answer:
    encoded = json.dumps({"model": target.model, **body}).encode()
    request = target.endpoint.encode("POST", "/v1/chat/completions", encoded)
    started_s = time.perf_counter()
    answer = json.loads(await _exchange(target.endpoint, request))
    seconds = time.perf_counter() - started_s
    return Answer(
        text=answer["choices"][0]["message"]["content"],
        num_tokens=answer["usage"]["completion_tokens"],
        seconds=seconds,
    )


async def _counters(target: Target) -> dict[str, float]:
    exposition = (await _exchange(target.metrics, target.metrics.encode("GET", "/metrics"))).decode()
    samples = dict(line.rsplit(" ", 1) for line in exposition.splitlines() if not line.startswith("#"))
    return {name: float(samples[f"pageloom_spec_decode_{name}_total"]) for name in _COUNTERS}


async def _exchange(endpoint: Endpoint, request: bytes) -> bytes:
    connection = await HttpConnection.open(endpoint)
    try:
        exchange = await asyncio.wait_for(connection.exchange(request), _READY_TIMEOUT_S)
    finally:
        connection.close()
    if exchange.status != 200:
        raise BenchmarkError(f"the server answered {exchange.status}: {exchange.body[:200]!r}")
    return exchange.body


def _print(console: Console, title: str, results: dict[str, list[Round]]) -> None:
    table = Table(title=title, caption=str(Machine.describe()), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("answers")
    for heading in ("plain\ntok/s", "with it\ntok/s", "ratio", "accepted\nof guessed", "tokens per\nguessing step"):
        table.add_column(heading, justify="right")
    for name, rounds in results.items():
        counters = {counter: sum(one.counters[counter] for one in rounds) for counter in _COUNTERS}
        num_accepted, num_drafts = counters["num_accepted_tokens"], max(1.0, counters["num_drafts"])
        table.add_row(
            name,
            f"{statistics.median(one.plain_tokens_per_s for one in rounds):.1f}",
            f"{statistics.median(one.speculative_tokens_per_s for one in rounds):.1f}",
            f"{statistics.median(one.speculative_tokens_per_s / one.plain_tokens_per_s for one in rounds):.2f}",
            f"{num_accepted / max(1.0, counters['num_draft_tokens']):.0%}",
            f"{1 + num_accepted / num_drafts:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
