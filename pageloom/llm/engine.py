"""The engine of one program: processes of its own or a scheduler that runs elsewhere, and what both `LLM` and
`AsyncLLM` ask of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from pageloom.client import EngineClient
from pageloom.errors import EngineError, InvalidRequest, Unavailable
from pageloom.grammars.compiler import GrammarCompiler
from pageloom.llm.answer import Answer, Question
from pageloom.llm.asked import Asked
from pageloom.llm.batch import Batch
from pageloom.llm.outputs import RequestOutput
from pageloom.llm.prompts import Prompt
from pageloom.llm.sampling_params import RequestOutputKind
from pageloom.local_stack import LocalStack
from pageloom.model_files import locate_model
from pageloom.plan import ModelInfo
from pageloom.requests import EngineInfo, GenerateRequest
from pageloom.stack_config import StackConfig
from pageloom.status import Loading, SchedulerReady
from pageloom.text_model import TextModel, TextOptions, load_text_model

log = logging.getLogger(__name__)

# A session breaks a moment before the process that it led to has ended.
_NEWS_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`stack` is started; without it the scheduler at `address` is used. Requests without a seed get one drawn from
    `seed`, in the order in which they come; with None every run differs."""

    model: str
    text: TextOptions
    stack: StackConfig | None
    address: str | None
    seed: int | None


class Engine:
    """Belongs to one event loop. `model` knows texts, `info` is what the workers run."""

    def __init__(self, client: EngineClient, model: TextModel, info: ModelInfo, seed: int | None) -> None:
        self.client = client
        self.model = model
        self.info = info
        self.stack: LocalStack | None = None
        self._grammars = GrammarCompiler(model.tokenizer)
        self._seeds = None if seed is None else random.Random(seed)
        self._prefix = f"llm-{uuid.uuid4().hex[:12]}"
        self._numbers = itertools.count()
        self._cache_generation = 0
        self._watcher: asyncio.Task[None] | None = None
        # Why the processes are gone.
        self._failure = ""

    @classmethod
    @asynccontextmanager
    async def running(cls, config: EngineConfig, on_loading: Callable[[Loading], None]) -> AsyncGenerator[Engine]:
        """Started on entry; on exit everything is cancelled and stopped. Raises StartupError or Unavailable."""
        model = await asyncio.to_thread(_load_text_model, config)
        async with AsyncExitStack() as exits:
            stack, address = None, config.address
            if config.stack is not None:
                stack = LocalStack(config.stack, on_loading)
                stack.drain = False
                await exits.enter_async_context(stack)
                await stack.wait_until_ready()
                ready = stack.ready(SchedulerReady)
                address = ready.socket_address or ready.address
            assert address is not None
            client = await exits.enter_async_context(EngineClient(address))
            engine = cls(client, model, _served(await client.info(), address), config.seed)
            await exits.enter_async_context(engine._grammars)
            exits.callback(engine._close)
            if stack is not None:
                engine._watch(stack)
            yield engine

    async def question(self, asked: Asked, *, request_id: str | None = None, priority: int = 0) -> Question:
        """Takes the next seed. Raises InvalidRequest or, if the engine has ended, EngineError."""
        self._require_running()
        prompt, params, sampler = asked.prompt, asked.params, asked.sampler
        if sampler.grammar:
            await self._grammars.check(sampler.grammar, param=asked.grammar_field)
        sampler.check_vocabulary(self.info.vocab_size)
        room = self.info.max_model_len - len(prompt.token_ids)
        if sampler.seed is None and self._seeds is not None:
            sampler = replace(sampler, seed=self._seeds.getrandbits(64))
        # As vLLM does, a limit beyond the context is the end of the context.
        sampler = replace(sampler, max_tokens=min(sampler.max_tokens or room, room))
        own_id = self.new_id()
        return Question(
            prompt=prompt,
            params=params,
            request=GenerateRequest(
                request_id=own_id,
                prompt_token_ids=prompt.token_ids,
                sampling=sampler,
                n=params.n,
                priority=priority,
                cache_salt=self.cache_salt(prompt),
                include_timeline=True,
            ),
            request_id=own_id if request_id is None else request_id,
            # The end of a grammar is the end of the answer, whatever ignore_eos says.
            eos_token_ids=self.info.eos_token_ids if sampler.ends_at_eos else (),
            arrived_s=time.time(),
            message_format=asked.message_format,
            grammar_field=asked.grammar_field,
        )

    def new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def cache_salt(self, prompt: Prompt) -> str:
        """Prompts of different salts share no KV blocks."""
        if not self._cache_generation:
            return prompt.cache_salt
        return f"{self._prefix}-{self._cache_generation}-{prompt.cache_salt}"

    def reset_prefix_cache(self) -> None:
        """What was computed so far serves no later request; its blocks are the first to be used again."""
        self._cache_generation += 1

    async def answer_all(
        self, questions: Sequence[Question], on_answer: Callable[[RequestOutput], object]
    ) -> list[RequestOutput]:
        """The answers in the order of the questions; `on_answer` is told of each when it comes.

        Raises what the engine's calls raise, and then cancels the others.
        """
        async with self.failing():
            return await Batch(self.client, self.model.tokenizer, questions, on_answer).run()

    async def answer(self, question: Question, answer: Answer) -> AsyncGenerator[RequestOutput]:
        """The answer as it grows, or its end alone if that is all that counts; closing the generator cancels what still
        runs."""
        only_end = question.params.output_kind is RequestOutputKind.FINAL_ONLY
        async with self.failing():
            stream = self.client.start(question.request)
            try:
                while events := await stream.take():
                    answer.take(events)
                    if answer.stopped:
                        stream.cancel(tuple(answer.stopped))
                        answer.stopped.clear()
                    if answer.finished or not only_end:
                        yield answer.output()
            except InvalidRequest as error:
                raise question.naming_argument(error) from None
            finally:
                stream.leave()

    @asynccontextmanager
    async def failing(self) -> AsyncGenerator[None]:
        """If the engine has ended, that is why what is in here fails."""
        try:
            yield
        except EngineError:
            self._require_running()
            raise
        except Unavailable:
            if self._watcher is not None:
                await asyncio.wait((self._watcher,), timeout=_NEWS_S)
            self._require_running()
            raise

    def _require_running(self) -> None:
        if self._failure:
            raise EngineError(self._failure)

    def _watch(self, stack: LocalStack) -> None:
        self.stack = stack
        self._watcher = asyncio.create_task(self._wait_for_end(stack), name="engine watcher")

    async def _wait_for_end(self, stack: LocalStack) -> None:
        name, code = await stack.wait_for_exit(_tell_of_lost_worker)
        self._failure = f"the engine is gone: its {name} ended with exit code {code}"
        # Without workers the scheduler would keep requests waiting for one.
        stack.kill()

    def _close(self) -> None:
        self._failure = self._failure or "the engine was shut down"
        if self._watcher is not None:
            self._watcher.cancel()


def _tell_of_lost_worker(name: str, code: int) -> None:
    log.warning("%s ended with exit code %d; the others go on without it", name, code)


def _load_text_model(config: EngineConfig) -> TextModel:
    return load_text_model(locate_model(config.model, weights=False), config.text)


def _served(info: EngineInfo, address: str) -> ModelInfo:
    if info.model is None or not info.workers:
        raise Unavailable(f"no worker is attached to the scheduler at {address}")
    return info.model
