"""A worker's process beside a scheduler's, joined by a unix socket: it leaves in good order, or is sent away."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from pageloom.client import EngineClient
from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, FinishReason
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams

NUM_TOKENS = 150
# So long a request runs at 5 ms a step.
REQUEST_S = NUM_TOKENS * 0.005


class Processes:
    """A scheduler at a unix socket, and workers without a model, each a real process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.address = f"unix:{directory}/scheduler.sock"
        self._start("scheduler", "--port", "0", "--uds", f"{directory}/scheduler.sock")

    def worker(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        return self._start("worker", "--simulate", "fixed:5ms", "--scheduler", self.address, "--worker-id", name, *args)

    def _start(self, *args: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", "pageloom", *args, "--log-level", "error"])
        self._stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[tuple[Processes, EngineClient]]:
    with ExitStack() as stack:
        started = Processes(directory, stack)
        async with EngineClient(started.address) as client:
            yield started, client


async def wait_for_workers(client: EngineClient, *names: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                if {worker.worker_id for worker in (await client.info()).workers} == set(names):
                    return
            except PageloomError:
                pass
            await asyncio.sleep(0.02)


async def run(client: EngineClient, name: str, started: asyncio.Event) -> ChoiceFinished:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    async for event in client.generate(
        GenerateRequest(request_id=name, prompt_token_ids=(5, 7, 11), sampling=sampling)
    ):
        started.set()
        last = event
    assert isinstance(last, ChoiceFinished)
    return last


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 10)


async def test_workers_come_and_go_and_no_request_notices(tmp_path: Path):
    async with asyncio.timeout(60), processes(tmp_path) as (started, client):
        first = started.worker("first")
        await wait_for_workers(client, "first")

        # SIGTERM: it finishes what it runs, and no more.
        running = asyncio.Event()
        request = asyncio.create_task(run(client, "finished-at-home", running))
        await running.wait()
        first.send_signal(signal.SIGTERM)
        assert (await request).num_output_tokens == NUM_TOKENS
        assert await exit_code(first) == 0
        await wait_for_workers(client)

        # With less time than that takes, its requests go on elsewhere.
        second = started.worker("second", "--shutdown-timeout", str(REQUEST_S / 5))
        await wait_for_workers(client, "second")
        running = asyncio.Event()
        request = asyncio.create_task(run(client, "moved", running))
        await running.wait()
        second.send_signal(signal.SIGTERM)
        assert await exit_code(second) == 0
        third = started.worker("third")
        finished = await request
        assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, NUM_TOKENS)

        # The scheduler sends the last one away for good.
        await wait_for_workers(client, "third")
        assert await client.drain_worker("third", 5.0)
        assert await exit_code(third) == 0
