"""A driver that does what a test tells it, behind the real Engine service on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pageloom import __version__
from pageloom.errors import DuplicateRequest, InvalidRequest
from pageloom.outputs import ChoiceFinished, FinishReason, PromptLogprobs, TokenLogprobs
from pageloom.plan import CacheInfo
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import engine_pb2_grpc
from pageloom.rpc_channel import create_server
from pageloom.timeline import Timeline
from scheduler_svc.engine_service import EngineService
from scheduler_svc.outbox import Reader


class PuppetDriver:
    """Tests read `requests`, `closed` and `cancelled`, set `refusal`, and hand out tokens and ends."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.num_submits = 0
        self.prepared: list[str] = []
        self.may_prepare = asyncio.Event()
        self.may_prepare.set()
        self.requests: dict[str, GenerateRequest] = {}
        self.readers: dict[str, Reader] = {}
        self.closed: list[str] = []
        self.cancelled: list[tuple[str, tuple[int, ...]]] = []
        self.drained: list[tuple[str, float | None]] = []
        self.known_timelines: dict[str, tuple[Timeline, ...]] = {}

    def submit(self, request: GenerateRequest, reader: Reader) -> None:
        self.num_submits += 1
        if self.refusal is not None:
            raise self.refusal
        if request.request_id in self.readers:
            raise DuplicateRequest(f"{request.request_id} runs", param="request_id")
        self.requests[request.request_id] = request
        self.readers[request.request_id] = reader

    async def prepare(self, grammar: str) -> None:
        self.prepared.append(grammar)
        await self.may_prepare.wait()
        if grammar.startswith("bad"):
            raise InvalidRequest(f"{grammar} cannot be used", param="grammar")

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        self.cancelled.append((request_id, choice_indexes))
        if (request := self.requests.get(request_id)) is not None:
            for choice_index in choice_indexes or range(request.n):
                self.finish(request_id, 0, choice_index, FinishReason.CANCELLED)

    def close(self, request_id: str) -> None:
        del self.readers[request_id], self.requests[request_id]
        self.closed.append(request_id)

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        return self.known_timelines.get(request_id)

    async def drain_worker(self, worker_id: str, timeout_s: float | None) -> bool:
        self.drained.append((worker_id, timeout_s))
        return worker_id == "known"

    def info(self) -> EngineInfo:
        cache = CacheInfo(block_size=16, num_blocks=64, kv_bytes=1)
        return EngineInfo(
            version=__version__,
            model=None,
            workers=(WorkerInfo(worker_id="known", epoch=1, cache=cache, num_free_blocks=64),),
            num_running=len(self.readers),
            num_waiting=0,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            draining=False,
        )

    def step(self, first_index: int, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """One token for the first choice of every request, as a driver gives them: in one go."""
        for reader in self.readers.values():
            reader.put_token(0, first_index, token_id, logprobs)

    def score(self, request_id: str, logprobs: PromptLogprobs) -> None:
        self.readers[request_id].put_prompt_logprobs(logprobs)

    def finish(
        self, request_id: str, num_tokens: int, choice_index: int = 0, reason: FinishReason = FinishReason.LENGTH
    ) -> None:
        event = ChoiceFinished(
            choice_index=choice_index, reason=reason, num_output_tokens=num_tokens, num_cached_tokens=0
        )
        self.readers[request_id].put_finished(event)


@asynccontextmanager
async def engine_server(driver: PuppetDriver, port: int = 0) -> AsyncGenerator[str]:
    """The Engine service over `driver`; its address."""
    server = create_server()
    engine_pb2_grpc.add_EngineServicer_to_server(EngineService(driver), server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
