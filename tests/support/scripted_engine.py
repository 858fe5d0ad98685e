"""A real Engine gRPC server whose tokens come from a script instead of a model: one message for each event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import NoReturn, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pageloom import wire
from pageloom.client import ENGINE_SERVICE
from pageloom.errors import PageloomError
from pageloom.outputs import (
    ChoiceFinished,
    FinishReason,
    GenerateEvent,
    PromptLogprobs,
    TokenLogprobs,
    TokensGenerated,
)
from pageloom.plan import CacheInfo, ModelInfo
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.rpc_channel import create_server
from pageloom.timeline import Timeline

Context = grpc.aio.ServicerContext[object, object]
Write = Callable[[engine_pb2.SessionResponse], Awaitable[None]]
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
    hidden_size=4,
)
WORKER = WorkerInfo(
    worker_id="w", epoch=1, cache=CacheInfo(block_size=16, num_blocks=64, kv_bytes=1), num_free_blocks=64
)


class EndedTooEarly(Exception):
    """A script ended before all choices had: the engine ends the session."""


class ScriptedEngine(engine_pb2_grpc.EngineServicer):
    """Use as async context manager. Tests set `script` and read what arrived: `requests`, `cancelled`
    (request id -> choices), `closed` (ids of requests whose caller left before their end)."""

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

    # A coroutine that writes, where the stubs foresee a generator: several scripts answer in turn.
    async def Session(  # type: ignore[override]
        self,
        messages: AsyncIterator[engine_pb2.SessionRequest],
        context: grpc.aio.ServicerContext[engine_pb2.SessionRequest, engine_pb2.SessionResponse],
    ) -> None:
        turn = asyncio.Lock()

        async def write(message: engine_pb2.SessionResponse) -> None:
            async with turn:
                await context.write(message)

        try:
            async with asyncio.TaskGroup() as scripts:
                await self._receive(messages, scripts, write)
        except* EndedTooEarly:
            pass

    async def _receive(
        self, messages: AsyncIterator[engine_pb2.SessionRequest], scripts: asyncio.TaskGroup, write: Write
    ) -> None:
        request_ids: dict[int, str] = {}
        playing: dict[int, asyncio.Task[None]] = {}
        async for message in messages:
            if message.HasField("start"):
                request_ids[message.start.stream_id] = message.start.request.request_id
                playing[message.start.stream_id] = scripts.create_task(self._play(message.start, write))
            elif message.cancel.choice_indexes:
                await self._note_cancel(request_ids[message.cancel.stream_id], message.cancel.choice_indexes)
            else:
                playing[message.cancel.stream_id].cancel()

    async def _play(self, start: engine_pb2.StartStream, write: Write) -> None:
        ended = False
        try:
            request = wire.generate_request_from_proto(start.request)
            self.requests.append(request)
            await self._tell()
            num_unfinished = request.n
            async for event in self.script(request):
                num_unfinished -= isinstance(event, ChoiceFinished)
                await write(response_of(start.stream_id, event))
            ended = True
            if num_unfinished:
                raise EndedTooEarly
        except PageloomError as error:
            ended = True
            await write(wire.session_response_to_proto((), (), [wire.StreamRefused(start.stream_id, error)]))
        finally:
            if not ended:
                self.closed.append(start.request.request_id)
                await self._tell()

    async def _note_cancel(self, request_id: str, choice_indexes: Iterable[int]) -> None:
        self.cancelled.setdefault(request_id, set()).update(choice_indexes)
        await self._tell()

    async def Cancel(self, message: engine_pb2.CancelRequest, _context: Context) -> engine_pb2.CancelResponse:
        await self._note_cancel(message.request_id, message.choice_indexes)
        return engine_pb2.CancelResponse()

    # The gateway calls none of the others.
    async def Generate(self, _message: engine_pb2.GenerateRequest, context: Context) -> NoReturn:  # type: ignore[override]
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    async def GetTimeline(self, _message: engine_pb2.GetTimelineRequest, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    async def DrainWorker(self, _message: engine_pb2.DrainWorkerRequest, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

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


def response_of(stream_id: int, event: GenerateEvent) -> engine_pb2.SessionResponse:
    if isinstance(event, ChoiceFinished):
        return wire.session_response_to_proto((), [wire.StreamFinished(stream_id, event)])
    if isinstance(event, PromptLogprobs):
        return wire.session_response_to_proto((), prompt_logprobs=[wire.StreamPromptLogprobs(stream_id, event)])
    entry = wire.StreamTokens(stream_id, event.choice_index, event.first_index, event.token_ids, event.logprobs)
    return wire.session_response_to_proto([entry])


def tokens(choice_index: int, first_index: int, token_ids: Iterable[int], scored: bool = False) -> TokensGenerated:
    ids = tuple(token_ids)
    logprobs = tuple(TokenLogprobs(-0.5, (token_id, 11), (-0.5, -1.5)) for token_id in ids) if scored else ()
    return TokensGenerated(choice_index=choice_index, first_index=first_index, token_ids=ids, logprobs=logprobs)


def scored(prompt: tuple[int, ...], first: int, end: int, num_top: int) -> PromptLogprobs:
    """Of prompt tokens `first` to `end` - 1: token i has -i, and is the likeliest if its index is even."""
    likeliest = [(prompt[index], -float(index)) if index % 2 == 0 else (11, -0.5) for index in range(first, end)]
    return PromptLogprobs(
        first_index=first,
        logprobs=tuple(-float(index) for index in range(first, end)),
        ranks=tuple(1 if index % 2 == 0 else 40 for index in range(first, end)),
        top_token_ids=tuple(id_ for token_id, _ in likeliest for id_ in (token_id, *range(100, 120))[:num_top]),
        top_logprobs=tuple(logprob - place for _, logprob in likeliest for place in range(num_top)),
    )


def finished(
    choice_index: int,
    num_output_tokens: int,
    reason: FinishReason = FinishReason.LENGTH,
    *,
    num_cached_tokens: int = 0,
    stop_token_id: int | None = None,
    error_message: str = "",
    error_param: str = "",
    timeline: Timeline | None = None,
    embedding: bytes = b"",
) -> ChoiceFinished:
    return ChoiceFinished(
        choice_index=choice_index,
        reason=reason,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=num_cached_tokens,
        stop_token_id=stop_token_id,
        error_message=error_message,
        error_param=error_param,
        timeline=timeline,
        embedding=embedding,
    )


def says(
    *outputs: Iterable[int],
    step_s: float = 0.0,
    num_cached_tokens: int = 0,
    reason: FinishReason = FinishReason.LENGTH,
    stop_token_id: int | None = None,
) -> Script:
    """Each choice generates its output one token at a time, choices taking turns; the last output is
    repeated for further choices. A prompt is scored in parts of three tokens."""

    async def script(request: GenerateRequest) -> AsyncIterator[GenerateEvent]:
        if (num_top := request.sampling.prompt_logprobs) is not None:
            num_tokens = len(request.prompt_token_ids)
            for first in range(1, num_tokens, 3):
                yield scored(request.prompt_token_ids, first, min(first + 3, num_tokens), num_top)
        with_logprobs = request.sampling.logprobs is not None
        texts = [list(outputs[min(choice, len(outputs) - 1)]) for choice in range(request.n)]
        for step in range(max(map(len, texts))):
            for choice, token_ids in enumerate(texts):
                if step < len(token_ids):
                    yield tokens(choice, step, token_ids[step : step + 1], with_logprobs)
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
