"""`AsyncLLM`: the engine for programs with an event loop, whose answers are streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Self, Unpack

from rich.console import Console

from pageloom.errors import DuplicateRequest
from pageloom.llm import asking
from pageloom.llm.answer import Answer
from pageloom.llm.engine import Engine
from pageloom.llm.engine_options import LLMOptions, engine_config, naming_arguments
from pageloom.llm.outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from pageloom.llm.pooling import pool_all
from pageloom.llm.prompts import PromptType, read_prompt
from pageloom.llm.sampling_params import RequestOutputKind, SamplingParams
from pageloom.llm.tokenizer_view import TokenizerView
from pageloom.terminal import LoadingBar


class AsyncLLM:
    """`LLM` in the caller's event loop: the same model, arguments and errors. Use as async context manager, or call
    `start` and `shutdown`."""

    def __init__(self, model: str = "", **options: Unpack[LLMOptions]) -> None:
        self._config = engine_config(type(self).__name__, model, options)
        self._exits = AsyncExitStack()
        self._engine: Engine | None = None
        self._answers: dict[str, tuple[str, Answer]] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Returns when the model is loaded. Raises StartupError or Unavailable."""
        with LoadingBar(Console(stderr=True)) as bar, naming_arguments():
            self._engine = await self._exits.enter_async_context(Engine.running(self._config, bar.update))

    async def shutdown(self) -> None:
        """Cancels what runs and stops the engine's processes."""
        self._engine = None
        await self._exits.aclose()

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Yields the answer as it grows, the last time with `finished`: all of it each time, with
        RequestOutputKind.DELTA what is new, with FINAL_ONLY the whole at the end. Tokens join while nobody takes them.
        Leaving the generator, or cancelling the task that reads it, ends the request at the engine.

        Raises what `LLM.generate` raises, and DuplicateRequest while another request has this id.
        """
        engine = self._running
        if request_id in self._answers:
            raise DuplicateRequest(
                f"request_id {request_id!r} is that of a request that still runs", param="request_id"
            )
        params = sampling_params or asking.default_sampling_params(engine)
        read = await asyncio.to_thread(read_prompt, prompt, engine.model.tokenizer, engine.info)
        question = engine.question(read, params, request_id=request_id, priority=priority)
        answer = Answer(question, engine.model.tokenizer)
        self._answers[question.request_id] = question.request.request_id, answer
        try:
            async with aclosing(engine.answer(question, answer)) as growing:
                async for output in growing:
                    if output.finished or params.output_kind is not RequestOutputKind.FINAL_ONLY:
                        yield output
        finally:
            del self._answers[question.request_id]

    async def abort(self, request_id: str) -> None:
        """Ends a request: its last output has the finish reason "abort". An unknown one is ignored."""
        own_id, answer = self._answers.get(request_id, ("", None))
        if answer is not None:
            answer.aborted = True
            await self._running.client.cancel(own_id)

    async def embed(self, prompt: PromptType, *, normalize: bool = True) -> EmbeddingRequestOutput:
        """An embedding of [hidden] floats, of length 1 unless `normalize` is False."""
        engine = self._running
        read = await asyncio.to_thread(read_prompt, prompt, engine.model.tokenizer, engine.info)
        (pooled,) = await pool_all(engine, [read], lambda _pooled: None)
        return EmbeddingRequestOutput(
            request_id=pooled.request_id,
            prompt_token_ids=list(read.token_ids),
            num_cached_tokens=pooled.num_cached_tokens,
            outputs=EmbeddingOutput(embedding=(pooled.unit_vector if normalize else pooled.vector).tolist()),
        )

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer and chat template, with transformers' names."""
        return TokenizerView(self._running.model)

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults, with what the model's generation_config.json says; the caller may change them."""
        return asking.default_sampling_params(self._running)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the AsyncLLM does not run: use it as `async with AsyncLLM(...) as llm`")
        return self._engine
