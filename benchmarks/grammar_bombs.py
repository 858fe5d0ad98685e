"""What do schemas and grammars that take too much cost those that stream meanwhile? One stream of a running server,
and requests beside it whose form is a bomb: through the gateway, and past it to the scheduler.

Each kind is sent again and again for a while, never the same one twice, so that nobody remembers it. What the stream
waits for its tokens meanwhile is compared with what it waits alone. Start it with
`python -m benchmarks.grammar_bombs --help`.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import new_table
from pageloom.client import EngineClient
from pageloom.errors import PageloomError
from pageloom.grammars import grammar as grammars
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams

TIMEOUT_S = 120.0
WARM_UP_S = 3.0
TOKENS_PER_ANSWER = 1000
JsonObject = dict[str, Any]


def many_long_items(number: int) -> JsonObject:
    item = {"type": "array", "minItems": 1000, "items": {"type": "string", "minLength": 9}}
    return {"properties": {f"p{i}": {**item, "maxItems": 4000 + i + number} for i in range(1500)}}


def many_properties(number: int) -> JsonObject:
    return {"type": "object", "properties": {f"p{i}_{number}": {"type": "string"} for i in range(4000)}}


def doubled(number: int) -> JsonObject:
    """Each level says twice what the next one is."""
    levels = [f"l{level}" for level in range(20)]
    definitions: JsonObject = {
        name: {"allOf": [{"$ref": f"#/$defs/{after}"}] * 2, "anyOf": [{"$ref": f"#/$defs/{after}"}] * 2}
        for name, after in pairwise(levels)
    }
    return {
        "$ref": f"#/$defs/{levels[0]}",
        "$defs": {**definitions, levels[-1]: {"type": "string", "maxLength": number + 1}},
    }


def ambiguous(number: int) -> str:
    return f'start: start start | start start start | /a{{{number + 1}}}/ | ""'


def wide(number: int) -> str:
    return "start: " + " | ".join(f"/a{{{i}}}b?{number}*/" for i in range(1, 3000))


# structured_outputs of each kind. Some are accepted: what they cost is not for their sender alone either.
BOMBS: Mapping[str, Callable[[int], JsonObject]] = {
    "long arrays": lambda number: {"json": many_long_items(number)},
    "4,000 properties": lambda number: {"json": many_properties(number)},
    "doubling schema": lambda number: {"json": doubled(number)},
    "counted regex": lambda number: {"regex": f"((a{{1,{number + 900}}}){{1,999}}b){{1,999}}"},
    "nested regex": lambda number: {"regex": "(" * (7000 + number) + "a" + ")" * (7000 + number)},
    "backtracking regex": lambda number: {"regex": f"(a?){{{number + 2000}}}a{{2000}}" * 3},
    "ambiguous grammar": lambda number: {"grammar": ambiguous(number)},
    "wide grammar": lambda number: {"grammar": wide(number)},
}
# Takes a structured_outputs, and says how it went.
Door = Callable[[JsonObject], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one kind, at one door; waits of the stream are in seconds."""

    outcomes: frozenset[str]
    slowest_s: float
    waits_s: tuple[float, ...]


class Stream:
    """Always one answer that is being streamed, and what it waits for each token but its first."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model
        # When the token came, and how long after the one before.
        self._waits_s: list[tuple[float, float]] = []

    async def run(self) -> None:
        body: JsonObject = {"model": self._model, "prompt": "Once upon a time", "ignore_eos": True, "stream": True}
        body["max_tokens"] = TOKENS_PER_ANSWER
        while True:
            async with self._http.stream("POST", "/v1/completions", json=body) as response:
                response.raise_for_status()
                last_s: float | None = None
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        now_s = time.perf_counter()
                        if last_s is not None:
                            self._waits_s.append((now_s, now_s - last_s))
                        last_s = now_s

    def waits_s(self, since_s: float) -> tuple[float, ...]:
        return tuple(wait_s for arrival_s, wait_s in self._waits_s if arrival_s >= since_s)


def main(
    url: Annotated[str, typer.Option("--url", help="Server whose gateway is asked.")] = "http://127.0.0.1:8000",
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="Address of its scheduler, to ask that one past the gateway, too.")
    ] = "",
    seconds: Annotated[float, typer.Option(help="How long each kind is sent, at least.", min=0.5)] = 4.0,
) -> None:
    """Shows how long the sender waits for each kind, and what a stream waits for its tokens meanwhile."""
    try:
        asyncio.run(_run(Console(), url, scheduler, seconds))
    except httpx.ConnectError as error:
        typer.echo(f"error: no server answers at {url}; start one with `pageloom serve`, or give --url", err=True)
        raise typer.Exit(1) from error


async def _run(console: Console, url: str, scheduler: str, seconds: float) -> None:
    async with AsyncExitStack() as exits:
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S))
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        doors: dict[str, Door] = {"gateway": _gateway(http, model)}
        if scheduler:
            doors["scheduler"] = _scheduler(await exits.enter_async_context(EngineClient(scheduler)))
        stream = await exits.enter_async_context(_streaming(http, model))
        since_s = time.perf_counter()
        await asyncio.sleep(seconds)
        alone_s = stream.waits_s(since_s)
        for door, ask in doors.items():
            table = _table(f"sent to the {door}", alone_s)
            for kind, form in BOMBS.items():
                figures = await _measured(stream, ask, form, seconds)
                table.add_row(kind, *_cells(figures, alone_s))
            console.print(table)


@asynccontextmanager
async def _streaming(http: httpx.AsyncClient, model: str) -> AsyncIterator[Stream]:
    stream = Stream(http, model)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(stream.run())
        await asyncio.sleep(WARM_UP_S)
        yield stream
        running.cancel()


async def _measured(stream: Stream, ask: Door, form: Callable[[int], JsonObject], seconds: float) -> Figures:
    outcomes, slowest_s, since_s = set(), 0.0, time.perf_counter()
    for number in itertools.count(time.monotonic_ns() % 300):
        sent_s = time.perf_counter()
        if sent_s - since_s >= seconds:
            break
        outcomes.add(await ask(form(number)))
        slowest_s = max(slowest_s, time.perf_counter() - sent_s)
    return Figures(outcomes=frozenset(outcomes), slowest_s=slowest_s, waits_s=stream.waits_s(since_s))


def _gateway(http: httpx.AsyncClient, model: str) -> Door:
    async def ask(form: JsonObject) -> str:
        body = {"model": model, "prompt": "x", "max_tokens": 1, "structured_outputs": form}
        return str((await http.post("/v1/completions", json=body)).status_code)

    return ask


def _scheduler(client: EngineClient) -> Door:
    """It is sent what a gateway would make of the form."""

    async def ask(form: JsonObject) -> str:
        try:
            sampling = SamplingParams(max_tokens=1, grammar=_grammar(form))
            name = f"bomb-{time.monotonic_ns()}"
            request = GenerateRequest(request_id=name, prompt_token_ids=(1,), sampling=sampling)
            async for _ in client.generate(request):
                pass
        except PageloomError as error:
            return type(error).__name__
        return "accepted"

    return ask


def _grammar(form: JsonObject) -> str:
    if "json" in form:
        return grammars.json_schema(form["json"], param="json")
    return grammars.regex(form["regex"]) if "regex" in form else grammars.lark(form["grammar"])


def _table(title: str, alone_s: tuple[float, ...]) -> Table:
    alone = f"stream alone: p50 {_milliseconds(median(alone_s))}, longest {_milliseconds(max(alone_s))}"
    table = new_table(title, f"{alone}\n{Machine.describe()}")
    table.add_column("kind", no_wrap=True)
    table.add_column("outcome")
    for heading in ("slowest\nanswer", "stream\np50", "of that\nalone", "stream\nlongest"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _cells(figures: Figures, alone_s: tuple[float, ...]) -> tuple[str, ...]:
    outcome, slowest = ", ".join(sorted(figures.outcomes)), f"{figures.slowest_s:.2f} s"
    if not figures.waits_s:
        return outcome, slowest, "-", "-", "-"
    p50_s = median(figures.waits_s)
    ratio = f"{p50_s / median(alone_s):.2f} ×"
    return outcome, slowest, _milliseconds(p50_s), ratio, _milliseconds(max(figures.waits_s))


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


if __name__ == "__main__":
    typer.run(main)
