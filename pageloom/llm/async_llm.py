"""`AsyncLLM`: the engine for programs with an event loop, whose answers are streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self, Unpack

from rich.console import Console

from pageloom.errors import DuplicateRequest
from pageloom.llm import arguments as args
from pageloom.llm.answer import Answer
from pageloom.llm.argument_names import check_names
from pageloom.llm.argument_types import require_type
from pageloom.llm.asked import Asked, ChatArguments, ChatMessages, ask_chat, ask_prompts
from pageloom.llm.engine import Engine
from pageloom.llm.engine_options import LLMOptions, engine_config, naming_arguments
from pageloom.llm.held import Held
from pageloom.llm.outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from pageloom.llm.pooling import pool_all
from pageloom.llm.prompts import PromptType, read_prompt
from pageloom.llm.sampling_params import SamplingParams
from pageloom.llm.tokenizer_view import TokenizerView
from pageloom.terminal import LoadingBar


class AsyncLLM:
    """`LLM` in the caller's event loop: the same model, arguments and errors. Use as async context manager, or call
    `start` and `shutdown`."""

    def __init__(self, model: str | os.PathLike[str] = "", **options: Unpack[LLMOptions]) -> None:
        self._config = engine_config(type(self).__name__, model, options)
        self._held: Held[Engine] | None = None
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
        """Returns when the model is loaded. Raises StartupError or Unavailable, and RuntimeError if it was called
        already and `shutdown` was not."""
        if self._held is not None:
            raise RuntimeError("the AsyncLLM runs already")
        with LoadingBar(Console(stderr=True)) as bar, naming_arguments():
            held = self._held = Held(Engine.running(self._config, bar.update))
            try:
                self._engine = await held.open()
            except BaseException:
                self._held = None
                raise

    async def shutdown(self) -> None:
        """Cancels what runs and stops the engine's processes."""
        held, self._held, self._engine = self._held, None, None
        if held is not None:
            await held.close()

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
        params = args.params_or_default(engine, sampling_params)
        (priority,) = args.priority_each(1, priority)
        read = await asyncio.to_thread(read_prompt, prompt, engine.model.tokenizer, engine.info)
        (asked,) = await asyncio.to_thread(ask_prompts, [read], [params], engine.model)
        async with aclosing(self._answer(engine, asked, request_id, priority)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: ChatMessages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        **arguments: Unpack[ChatArguments],
    ) -> AsyncGenerator[RequestOutput]:
        """The same for a conversation, with the arguments of `LLM.chat`."""
        engine = self._running
        check_names("chat", arguments, ChatArguments)
        params = args.params_or_default(engine, sampling_params)
        (priority,) = args.priority_each(1, priority)
        asked = await asyncio.to_thread(ask_chat, messages, params, arguments, engine.model, engine.info)
        async with aclosing(self._answer(engine, asked, request_id, priority)) as outputs:
            async for output in outputs:
                yield output

    async def _answer(
        self, engine: Engine, asked: Asked, request_id: str | None, priority: int
    ) -> AsyncGenerator[RequestOutput]:
        require_type("request_id", request_id, str | None)
        if request_id in self._answers:
            raise DuplicateRequest(f"a request with request_id {request_id!r} still runs", param="request_id")
        question = await engine.question(asked, request_id=request_id, priority=priority)
        answer = Answer(question, engine.model.tokenizer)
        self._answers[question.request_id] = question.request.request_id, answer
        try:
            async with aclosing(engine.answer(question, answer)) as growing:
                async for output in growing:
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
        return args.default_sampling_params(self._running)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the AsyncLLM does not run: use it as `async with AsyncLLM(...) as llm`")
        return self._engine
