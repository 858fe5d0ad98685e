"""Composition of the gateway: the parts, the routes, the error handlers, and the watch over the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from gateway.answers.lifecycle import Lifecycle
from gateway.background_tasks import BackgroundTasks
from gateway.batches.directory import BatchDirectory
from gateway.batches.file_store import FileStore, StoreLimits
from gateway.batches.inner_call import caller
from gateway.batches.service import BatchService
from gateway.engine_state import EngineState
from gateway.errors import install_error_handlers
from gateway.http.middleware import RequestMiddleware
from gateway.http.openapi import describe_truly
from gateway.loop_lag import watch_lag
from gateway.metrics import GatewayMetrics
from gateway.responses.shared_store import SharedResponseStore
from gateway.responses.store import ResponseStore
from gateway.routes import (
    anthropic_messages,
    batches,
    chat,
    completions,
    docs_page,
    embeddings,
    files,
    models,
    ops,
    responses,
    tokenize,
)
from gateway.runtime import Gateway
from gateway.served_model import ServedModel
from pageloom import __version__
from pageloom.batch_lines import BATCH_URLS
from pageloom.client import EngineClient
from pageloom.config import GatewayConfig
from pageloom.grammars.compiler import GrammarCompiler

# Templates and tokenizers release the GIL only in part, so more threads would not help.
NUM_TEXT_THREADS = 2
_ROUTES = (
    chat,
    completions,
    embeddings,
    responses,
    anthropic_messages,
    files,
    batches,
    models,
    tokenize,
    ops,
    docs_page,
)


def create_app(config: GatewayConfig, client: EngineClient, model: ServedModel, lifecycle: Lifecycle) -> FastAPI:
    """The ASGI application. Its lifespan owns the client's connection and the watch over the engine."""
    app = FastAPI(
        title="Pageloom",
        version=__version__,
        lifespan=_lifespan,
        # FastAPI's pages load scripts from elsewhere; routes/docs_page.py has one that does not.
        docs_url=None,
        redoc_url=None,
        # A redirect loses the body of a POST.
        redirect_slashes=False,
    )
    gateway = app.state.gateway = _gateway(app, config, client, model, lifecycle)
    app.add_middleware(RequestMiddleware, metrics=gateway.metrics)
    if config.allowed_origins:
        # Around the other, so that a page may read what that refuses, too.
        _allow_browsers(app, config.allowed_origins)
    install_error_handlers(app)
    for routes in _ROUTES:
        app.include_router(routes.router)
    describe_truly(app)
    return app


def _gateway(
    app: FastAPI, config: GatewayConfig, client: EngineClient, model: ServedModel, lifecycle: Lifecycle
) -> Gateway:
    metrics = GatewayMetrics(model.names[0], config.shared_dir)
    background = BackgroundTasks()
    return Gateway(
        config=config,
        client=client,
        model=model,
        engine=EngineState(client, model.tokenizer.vocab_size),
        lifecycle=lifecycle,
        metrics=metrics,
        grammar_compiler=GrammarCompiler(
            model.tokenizer,
            form_limits=config.form_limits,
            grammar_limits=config.grammar_limits,
            on_refusal=metrics.grammars_refused.inc,
        ),
        threads=ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text"),
        thread_of_long_texts=ThreadPoolExecutor(1, thread_name_prefix="long-text"),
        responses=_response_store(config),
        background=background,
        batches=_batches(app, config, background),
    )


def _response_store(config: GatewayConfig) -> ResponseStore | SharedResponseStore:
    max_responses, max_bytes = config.max_stored_responses, config.max_stored_response_bytes
    if config.shared_dir is None:
        return ResponseStore(max_responses=max_responses, max_bytes=max_bytes, ttl_s=config.response_ttl_s)
    path = Path(config.shared_dir, "responses.sqlite")
    return SharedResponseStore(path, max_responses=max_responses, max_bytes=max_bytes, ttl_s=config.response_ttl_s)


def _allow_browsers(app: FastAPI, origins: Sequence[str]) -> None:
    """CORS without credentials: the API knows no cookies."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", "retry-after-ms", "x-should-retry"),
    )


def _batches(app: FastAPI, config: GatewayConfig, background: BackgroundTasks) -> BatchService:
    directory = BatchDirectory(config.batch_dir)
    limits = StoreLimits(
        max_files=config.max_stored_files, max_bytes=config.max_stored_file_bytes, ttl_s=config.file_ttl_s
    )
    served = {route.path for routes in _ROUTES for route in routes.router.routes if isinstance(route, APIRoute)}
    return BatchService(
        directory,
        FileStore(directory, limits),
        caller(app),
        background,
        urls=[url for url in BATCH_URLS if url in served],
        concurrency=config.batch_concurrency,
        max_line_bytes=config.max_body_bytes,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    gateway: Gateway = app.state.gateway
    async with gateway.client, gateway.grammar_compiler:
        async with gateway.background, asyncio.TaskGroup() as tasks:
            watches = (
                tasks.create_task(gateway.engine.watch()),
                tasks.create_task(watch_lag(gateway.metrics.loop_lag.observe)),
            )
            await gateway.batches.open()
            yield
            for watch in watches:
                watch.cancel()
        # Batches that have not ended stay as they are.
        await gateway.batches.close()
    for threads in (gateway.threads, gateway.thread_of_long_texts):
        threads.shutdown(wait=False, cancel_futures=True)
