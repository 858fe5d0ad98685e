"""A real Engine gRPC server whose tokens come from a script instead of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pageloom import wire
from pageloom.client import ENGINE_SERVICE
from pageloom.errors import PageloomError
from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, TokenLogprobs, TokensGenerated
from pageloom.plan import CacheInfo, ModelInfo
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.rpc_channel import create_server
from pageloom.rpc_errors import CODE_METADATA_KEY, PARAM_METADATA_KEY, to_grpc_status

Context = grpc.aio.ServicerContext[object, object]
Script = Callable[[GenerateRequest], AsyncIterator[GenerateEvent]]
VOCAB_SIZE = 49152
EOS_TOKEN_ID = 2
MODEL = ModelInfo(
    name="SmolLM2-135M-Instruct",
    digest="0" * 64,
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    max_model_len=512,
    eos_token_ids=(EOS_TOKEN_ID,),
    dtype="float32",
    weights_bytes=1,
)
WORKER = WorkerInfo(
    worker_id="w", epoch=1, cache=CacheInfo(block_size=16, num_blocks=64, kv_bytes=1), num_free_blocks=64
)


class ScriptedEngine(engine_pb2_grpc.EngineServicer):
    """Use as async context manager. Tests set `script` and read what arrived: `requests`, `cancelled`
    (request id -> choices), `closed` (request ids whose caller closed the stream before its end)."""

    def __init__(self, port: int = 0) -> None:
        self.script: Script = nothing
        self.model: ModelInfo | None = MODEL
        self.requests: list[GenerateRequest] = []
        self.cancelled: dict[str, set[int]] = {}
        self.closed: list[str] = []
        self.draining = False
        self._changed = asyncio.Condition()
        self._server = create_server()
        self._health = health.aio.HealthServicer()
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.set_serving(True)
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(grace=None)

    async def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(ENGINE_SERVICE, status.SERVING if serving else status.NOT_SERVING)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Waits until something that arrived makes the condition true."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    def was_cancelled(self, request: GenerateRequest, choice_index: int) -> bool:
        return choice_index in self.cancelled.get(request.request_id, ())

    async def Generate(
        self, message: engine_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[engine_pb2.GenerateEvent]:
        ended = False
        try:
            request = wire.generate_request_from_proto(message)
            self.requests.append(request)
            await self._tell()
            async for event in self.script(request):
                yield wire.event_to_proto(event)
            ended = True
        except PageloomError as error:
            ended = True
            metadata = [(CODE_METADATA_KEY, error.code or "error")]
            if error.param:
                metadata.append((PARAM_METADATA_KEY, error.param))
            await context.abort(to_grpc_status(error), error.message, tuple(metadata))
        finally:
            if not ended:
                self.closed.append(message.request_id)
                await self._tell()

    async def Cancel(self, message: engine_pb2.CancelRequest, _context: Context) -> engine_pb2.CancelResponse:
        self.cancelled.setdefault(message.request_id, set()).update(message.choice_indexes)
        await self._tell()
        return engine_pb2.CancelResponse()

    async def Info(self, _message: engine_pb2.InfoRequest, _context: Context) -> engine_pb2.InfoResponse:
        info = EngineInfo(
            version="0",
            model=self.model,
            workers=() if self.model is None else (WORKER,),
            num_running=0,
            num_waiting=0,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            draining=self.draining,
        )
        return wire.engine_info_to_proto(info)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def nothing(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
    if request:
        raise AssertionError("the test expected no request")
    yield finished(0, 0)


def tokens(choice_index: int, first_index: int, token_ids: Iterable[int], scored: bool = False) -> TokensGenerated:
    ids = tuple(token_ids)
    logprobs = tuple(TokenLogprobs(-0.5, (token_id, 11), (-0.5, -1.5)) for token_id in ids) if scored else ()
    return TokensGenerated(choice_index=choice_index, first_index=first_index, token_ids=ids, logprobs=logprobs)


def finished(
    choice_index: int,
    num_output_tokens: int,
    reason: FinishReason = FinishReason.LENGTH,
    *,
    num_cached_tokens: int = 0,
    stop_token_id: int | None = None,
    error_message: str = "",
) -> ChoiceFinished:
    return ChoiceFinished(
        choice_index=choice_index,
        reason=reason,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=num_cached_tokens,
        stop_token_id=stop_token_id,
        error_message=error_message,
    )


def says(
    *outputs: Iterable[int],
    step_s: float = 0.0,
    num_cached_tokens: int = 0,
    reason: FinishReason = FinishReason.LENGTH,
    stop_token_id: int | None = None,
) -> Script:
    """Each choice generates its output one token at a time, choices taking turns; the last output is
    repeated for further choices."""

    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        scored = request.sampling.logprobs is not None
        texts = [list(outputs[min(choice, len(outputs) - 1)]) for choice in range(request.n)]
        for step in range(max(map(len, texts))):
            for choice, token_ids in enumerate(texts):
                if step < len(token_ids):
                    yield tokens(choice, step, token_ids[step : step + 1], scored)
                if step == len(token_ids) - 1:
                    yield finished(
                        choice,
                        len(token_ids),
                        reason,
                        num_cached_tokens=num_cached_tokens,
                        stop_token_id=stop_token_id,
                    )
            await asyncio.sleep(step_s)

    return script
