"""The parts of a running gateway, and how a request uses them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends, Request
from starlette.types import Receive, Scope

from gateway.answers.generation import Generation
from gateway.answers.lifecycle import Lifecycle
from gateway.background_tasks import BackgroundTasks
from gateway.batches.service import BatchService
from gateway.engine_state import EngineState
from gateway.http.middleware import record_of
from gateway.metrics import GatewayMetrics, RequestObserver
from gateway.requests.job import Job
from gateway.requests.terms import Terms, read_terms
from gateway.responses.shared_store import SharedResponseStore
from gateway.responses.store import ResponseStore
from gateway.served_model import ServedModel
from pageloom.client import EngineClient
from pageloom.config import GatewayConfig
from pageloom.grammars.compiler import GrammarCompiler
from pageloom.plan import ModelInfo
from pageloom.request_model import RequestModel

P = ParamSpec("P")
R = TypeVar("R")
# A tenth of a second, about.
LONG_BODY_BYTES = 128 * 1024
BodyT = TypeVar("BodyT", bound=RequestModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Made once, in `app.py`."""

    config: GatewayConfig
    client: EngineClient
    model: ServedModel
    engine: EngineState
    lifecycle: Lifecycle
    metrics: GatewayMetrics
    grammar_compiler: GrammarCompiler
    threads: Executor
    # One request after the other: to tokenize the largest takes seconds, for which others would find no thread.
    thread_of_long_texts: Executor
    responses: ResponseStore | SharedResponseStore
    background: BackgroundTasks
    batches: BatchService

    def accepted(self, request: Request, model: str) -> Terms:
        """The terms of a request to the model of this name. Raises ModelNotFound, ShuttingDown, and InvalidRequest if a
        header is wrong."""
        self.model.require_name(model)
        self.lifecycle.require_accepting()
        return read_terms(request.headers, record_of(request.scope).started_s)

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """For text work that would hold up the event loop."""
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def prepared(self, request: Request, prepare: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for what is done with the texts of a request."""
        is_long = record_of(request.scope).num_body_bytes > LONG_BODY_BYTES
        threads = self.thread_of_long_texts if is_long else self.threads
        return await asyncio.get_running_loop().run_in_executor(threads, partial(prepare, *args, **kwargs))

    async def job(
        self,
        request: Request,
        translate: Callable[[BodyT, Terms, ServedModel, ModelInfo], Job],
        body: BodyT,
        terms: Terms,
    ) -> Job:
        """What a request wants of the engine. Raises what `translate` raises, InvalidRequest if its grammar cannot be
        compiled, Overloaded if too many others wait for that, and Unavailable without an engine or if nothing can be
        compiled at all."""
        job = await self.prepared(request, translate, body, terms, self.model, self.engine.require_model())
        if job.grammar:
            await self.grammar_compiler.check(job.grammar, param=job.grammar_field)
        return job


async def _gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDependency = Annotated[Gateway, Depends(_gateway_of)]


@asynccontextmanager
async def at_engine(
    gateway: Gateway, scope: Scope, receive: Receive, answer_id: str, observer: RequestObserver
) -> AsyncGenerator[None]:
    """What the engine is asked for as `answer_id` may take as long as the body lasts, the client stays and the server
    may run.

    Raises ClientDisconnected or ShuttingDown when one of those ends it.
    """
    record = record_of(scope)
    record.answer_id, record.observer = answer_id, observer
    try:
        with gateway.metrics.generations_running.track_inprogress():
            async with gateway.lifecycle.running(receive):
                yield
    except BaseException as error:
        observer.on_end(error)
        raise
    observer.on_end(None)


@asynccontextmanager
async def generating(
    gateway: Gateway, scope: Scope, receive: Receive, answer_id: str, job: Job
) -> AsyncGenerator[Generation]:
    """Runs a job `at_engine`."""
    observer = RequestObserver(gateway.metrics, record_of(scope).started_s, job.num_prompt_tokens, job.num_choices)
    async with (
        at_engine(gateway, scope, receive, answer_id, observer),
        Generation(gateway.client, answer_id, job, gateway.model.tokenizer, observer) as generation,
    ):
        yield generation
