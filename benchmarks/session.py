"""What does a token cost between scheduler and gateway? Calls of their own against one session for all.

The real Engine service and the real client in two processes, over gRPC; only the tokens come from a clock instead
of a model. Start it with `python -m benchmarks.session --help`.
"""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.report import write_figures
from pageloom import __version__, wire
from pageloom.client import EngineClient
from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, TokensGenerated
from pageloom.requests import EngineInfo, GenerateRequest
from pageloom.rpc.v1 import engine_pb2_grpc
from pageloom.rpc_channel import create_server, open_channel
from pageloom.sampling_params import SamplingParams
from pageloom.timeline import Timeline
from scheduler_svc.engine_service import EngineService
from scheduler_svc.outbox import Reader
from scheduler_svc.session_outbox import SessionOutbox

TOKEN_ID = 40_000
WARM_UP_TOKENS = 20

Generate = Callable[[GenerateRequest], AsyncIterator[GenerateEvent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many requests run together, and how fast they get tokens."""

    num_streams: int
    num_tokens: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """CPU seconds are of a whole process, gRPC's threads among them."""

    way: str
    server_cpu_s_per_token: float
    client_cpu_s_per_token: float
    tokens_per_event: float
    steps_per_s: float


class ClockDriver:
    """Gives every request a token at each tick, once all of them are there."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._readers: dict[str, Reader] = {}
        self._ticking: asyncio.Task[None] | None = None

    def submit(self, request: GenerateRequest, reader: Reader) -> None:
        self._readers[request.request_id] = reader
        if len(self._readers) == self._load.num_streams:
            self._ticking = asyncio.create_task(self._tick())

    async def prepare(self, grammar: str) -> None:
        """No request of these brings one."""

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Every stream runs to its end, so there is nothing to cancel."""

    def close(self, request_id: str) -> None:
        del self._readers[request_id]

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        return None

    async def drain_worker(self, worker_id: str, timeout_s: float | None) -> bool:
        return False

    def info(self) -> EngineInfo:
        return EngineInfo(
            version=__version__,
            model=None,
            workers=(),
            num_running=len(self._readers),
            num_waiting=0,
            max_num_seqs=self._load.num_streams,
            max_num_batched_tokens=self._load.num_streams,
            draining=False,
        )

    async def _tick(self) -> None:
        next_s = time.monotonic()
        for position in range(self._load.num_tokens):
            for reader in self._readers.values():
                reader.put_token(0, position, TOKEN_ID, None)
            next_s += self._load.step_s
            await asyncio.sleep(max(next_s - time.monotonic(), 0))
        event = ChoiceFinished(
            choice_index=0, reason=FinishReason.LENGTH, num_output_tokens=self._load.num_tokens, num_cached_tokens=0
        )
        for reader in self._readers.values():
            reader.put_finished(event)


def main(
    num_streams: Annotated[int, typer.Option("--streams", help="Requests that run together.")] = 256,
    num_tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each, after those to warm up.")] = 150,
    step_ms: Annotated[float, typer.Option(help="Time between their tokens, the same for both ways.")] = 50.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Compare the CPU time of a token by Generate, by Session, and in the session's outbox alone."""
    load = Load(num_streams=num_streams, num_tokens=num_tokens + WARM_UP_TOKENS, step_s=step_ms / 1e3)
    figures = [_measure(way, load) for way in ("Generate", "Session")]
    outbox = {num: _outbox_s(num) for num in (256, 1024)}
    machine = Machine.describe()
    _print_tables(machine, load, figures, outbox)
    write_figures(json_file, machine, load=load, ways=figures, outbox_s=outbox)


def _measure(way: str, load: Load) -> Figures:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs, load), daemon=True)
    server.start()
    address: str = ours.recv()
    try:
        return uvloop.run(_read(way, address, load, psutil.Process(server.pid)))
    finally:
        server.kill()
        server.join()


def _serve(parent: Connection, load: Load) -> None:
    async def serve() -> None:
        server = create_server()
        engine_pb2_grpc.add_EngineServicer_to_server(EngineService(ClockDriver(load)), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        parent.send(f"127.0.0.1:{port}")
        await server.wait_for_termination()

    uvloop.run(serve())


async def _read(way: str, address: str, load: Load, server: psutil.Process) -> Figures:
    ours = psutil.Process()
    num_events = num_measured = 0
    warm = asyncio.Event()
    num_warm = 0

    async def read_one(generate: Generate, index: int) -> None:
        nonlocal num_events, num_measured, num_warm
        request = GenerateRequest(
            request_id=f"request-{index}",
            prompt_token_ids=(1,) * 128,
            sampling=SamplingParams(max_tokens=load.num_tokens),
        )
        async for event in generate(request):
            if not isinstance(event, TokensGenerated):
                continue
            if warm.is_set():
                num_events += 1
                num_measured += len(event.token_ids)
            elif event.first_index <= WARM_UP_TOKENS < event.first_index + len(event.token_ids):
                num_warm += 1
                if num_warm == load.num_streams:
                    warm.set()

    async with _connected(way, address) as generate, asyncio.TaskGroup() as group:
        for index in range(load.num_streams):
            group.create_task(read_one(generate, index))
        await warm.wait()
        started_s, before = time.monotonic(), (_cpu_s(server), _cpu_s(ours))
        # Two steps short of the end, so that ending the requests is not counted.
        while num_measured < load.num_streams * (load.num_tokens - WARM_UP_TOKENS - 2):  # noqa: ASYNC110
            await asyncio.sleep(load.step_s)
        after, passed_s = (_cpu_s(server), _cpu_s(ours)), time.monotonic() - started_s
        num_tokens, tokens_per_event = num_measured, num_measured / num_events
    return Figures(
        way=way,
        server_cpu_s_per_token=(after[0] - before[0]) / num_tokens,
        client_cpu_s_per_token=(after[1] - before[1]) / num_tokens,
        tokens_per_event=tokens_per_event,
        steps_per_s=num_tokens / load.num_streams / passed_s,
    )


@asynccontextmanager
async def _connected(way: str, address: str) -> AsyncGenerator[Generate]:
    if way == "Session":
        async with EngineClient(address) as client:
            yield client.generate
        return
    async with open_channel(address) as channel:
        engine = engine_pb2_grpc.EngineStub(channel)

        async def generate(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
            async for event in engine.Generate(wire.generate_request_to_proto(request)):
                yield wire.event_from_proto(event)

        yield generate


def _outbox_s(num_streams: int) -> tuple[float, float]:
    """Seconds to put one step's tokens in, and to make its message: the best of many."""
    outbox = SessionOutbox()
    readers = [outbox.stream(stream_id, 1, lambda: None) for stream_id in range(num_streams)]
    put_s = message_s = float("inf")
    for position in range(300):
        started_s = time.perf_counter()
        for reader in readers:
            reader.put_token(0, position, TOKEN_ID, None)
        all_put_s = time.perf_counter()
        outbox.next_message()
        put_s = min(put_s, all_put_s - started_s)
        message_s = min(message_s, time.perf_counter() - all_put_s)
    return put_s, message_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _print_tables(machine: Machine, load: Load, figures: list[Figures], outbox: dict[int, tuple[float, float]]) -> None:
    title = f"{load.num_streams} requests, a token each every {load.step_s * 1e3:g} ms: CPU time per token"
    table = Table(title=title, caption=str(machine), caption_justify="left")
    table.add_column("way")
    for heading in ("server µs", "client µs", "both µs", "tokens per event", "steps/s"):
        table.add_column(heading, justify="right")
    for one in figures:
        server_us, client_us = one.server_cpu_s_per_token * 1e6, one.client_cpu_s_per_token * 1e6
        cells = (f"{server_us:.1f}", f"{client_us:.1f}", f"{server_us + client_us:.1f}")
        table.add_row(one.way, *cells, f"{one.tokens_per_event:.2f}", f"{one.steps_per_s:.1f}")
    Console().print(table)
    for num_streams, (put_s, message_s) in outbox.items():
        print(
            f"outbox alone, a step of {num_streams}: {put_s / num_streams * 1e9:.0f} ns to put a token in, "
            f"{message_s * 1e6:.0f} µs to make the message"
        )


if __name__ == "__main__":
    typer.run(main)
