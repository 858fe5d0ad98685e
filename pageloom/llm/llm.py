"""`LLM`: the engine for programs that have their prompts together. vLLM's names; no HTTP and no second engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

from rich.console import Console

from pageloom.batch_progress import BatchProgress
from pageloom.errors import InvalidConfig, InvalidRequest
from pageloom.llm import arguments as args
from pageloom.llm import outputs
from pageloom.llm.argument_names import check_names
from pageloom.llm.argument_types import require_type
from pageloom.llm.asked import Asked, ChatArguments, ChatMessages, ask_chat, ask_prompts, listed_chats
from pageloom.llm.engine import Engine
from pageloom.llm.engine_options import LLMOptions, engine_config, naming_arguments
from pageloom.llm.held import Held
from pageloom.llm.loop_thread import LoopThread, shared_loop
from pageloom.llm.metrics import Metric, read_metrics
from pageloom.llm.outputs import EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput, ScoringRequestOutput
from pageloom.llm.pooling import Pooled, pool_all
from pageloom.llm.prompts import Prompt, PromptType
from pageloom.llm.sampling_params import SamplingParams
from pageloom.llm.tokenizer_view import TokenizerView
from pageloom.terminal import LoadingBar

T = TypeVar("T")


class LLM:
    """Loads `model` (a folder, a .gguf file, a Hugging Face id, or "" for the embedded default) into processes of its
    own: a scheduler and its workers, which end with it. Use as context manager, or call `shutdown`, or let the program
    end.

    Keyword arguments are those of `LLMOptions`. All methods wait for their results, also inside of a running event
    loop; any thread may call them. Ctrl-C cancels what was asked for and leaves the engine as it was.

    Raises TypeError for an argument that nobody knows, InvalidConfig for a value that is not accepted, StartupError if
    the engine cannot start, Unavailable if there is none at `address`.
    """

    def __init__(self, model: str | os.PathLike[str] = "", **options: Unpack[LLMOptions]) -> None:
        config = engine_config(type(self).__name__, model, options)
        self._thread = shared_loop()
        with LoadingBar(Console(stderr=True)) as bar:
            held = Held(Engine.running(config, bar.update))
            # Also when the program ends without a word.
            self._close = weakref.finalize(self, _close, self._thread, held)
            self._engine = self._open(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stops the engine's processes. Nothing can be asked afterwards; a second call does nothing."""
        self._close()

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The answers, in the order of the prompts: texts, lists of token ids, `{"prompt": text}` or
        `{"prompt_token_ids": ids}`, with a `cache_salt` beside if they are to share no KV blocks with others.

        `sampling_params` are for all of them or one each; None: `get_default_sampling_params()`. `use_tqdm` shows a bar
        with tokens per second on terminals and in notebooks. `priority`, the lower the earlier, is one for all or one
        each.

        Raises InvalidRequest, which names what was wrong, before anything is generated; ContextLengthExceeded for a
        prompt that leaves no room for a token; EngineError if the engine has failed.
        """
        engine = self._running
        read = args.read_prompts(engine, prompts)
        params = args.one_each(engine, len(read), sampling_params)
        return self._answer(ask_prompts(read, params, engine.model), priority, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: ChatMessages | Sequence[ChatMessages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = None,
        **arguments: Unpack[ChatArguments],
    ) -> list[RequestOutput]:
        """The answers to one conversation, a list of messages with OpenAI's keys, or to each of several; `arguments`
        are described at `ChatArguments`. The text of an answer is as the model wrote it; what it says, thinks and calls
        is told apart in its `message`.

        Raises what `generate` raises, and TypeError for an argument that nobody knows.
        """
        engine = self._running
        check_names("chat", arguments, ChatArguments)
        chats = listed_chats(messages)
        params = args.one_each(engine, len(chats), sampling_params)
        asked = [
            ask_chat(chat, each, arguments, engine.model, engine.info) for chat, each in zip(chats, params, strict=True)
        ]
        return self._answer(asked, priority, use_tqdm=use_tqdm)

    def embed(
        self, prompts: PromptType | Sequence[PromptType], *, use_tqdm: bool = True, normalize: bool = True
    ) -> list[EmbeddingRequestOutput]:
        """An embedding of [hidden] floats for each prompt, of length 1 unless `normalize` is False."""
        return [
            EmbeddingRequestOutput(
                request_id=each.request_id,
                prompt_token_ids=list(each.prompt.token_ids),
                num_cached_tokens=each.num_cached_tokens,
                outputs=outputs.EmbeddingOutput(embedding=(each.unit_vector if normalize else each.vector).tolist()),
            )
            for each in self._pool(args.read_prompts(self._running, prompts), use_tqdm)
        ]

    def encode(
        self, prompts: PromptType | Sequence[PromptType], *, pooling_task: str = "embed", use_tqdm: bool = True
    ) -> list[PoolingRequestOutput]:
        """The same as numpy arrays of float32 [hidden], as the model gives them. `pooling_task` can only be "embed"."""
        require_type("pooling_task", pooling_task, str)
        if pooling_task != "embed":
            raise InvalidRequest(f"pooling_task must be 'embed', not {pooling_task[:64]!r}", param="pooling_task")
        return [
            PoolingRequestOutput(
                request_id=each.request_id,
                prompt_token_ids=list(each.prompt.token_ids),
                num_cached_tokens=each.num_cached_tokens,
                outputs=outputs.PoolingOutput(data=each.vector),
            )
            for each in self._pool(args.read_prompts(self._running, prompts), use_tqdm)
        ]

    def score(
        self,
        data_1: PromptType | Sequence[PromptType],
        data_2: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How alike the prompts of each pair are: the cosine of their embeddings. One prompt in `data_1` is compared
        with each in `data_2`; otherwise there must be as many in both. Raises InvalidRequest if there are not."""
        first = args.read_prompts(self._running, data_1, "data_1")
        second = args.read_prompts(self._running, data_2, "data_2")
        if len(first) not in (1, len(second)):
            raise InvalidRequest(
                f"data_1 has {len(first)} prompts for {len(second)} in data_2; give one, or one each", param="data_1"
            )
        pooled = self._pool(first + second, use_tqdm)
        left, right = pooled[: len(first)], pooled[len(first) :]
        return [_score(one, other) for one, other in zip(left * (len(right) // len(left)), right, strict=True)]

    def tokenize(self, prompts: str | Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """The token ids of each text. `add_special_tokens` frames it as the model wants it, as `generate` does."""
        return args.tokenize(self._running, prompts, add_special_tokens=add_special_tokens)

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer and chat template, with transformers' names."""
        return TokenizerView(self._running.model)

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults, with what the model's generation_config.json says; the caller may change them."""
        return args.default_sampling_params(self._running)

    def get_metrics(self) -> list[Metric]:
        """What scheduler and workers count and time: Counter, Gauge or Histogram, with the names of docs/http.md.

        Raises InvalidConfig with `address`: only who started that engine knows where its processes have their metrics.
        """
        stack = self._running.stack
        if stack is None:
            raise InvalidConfig(
                "get_metrics() reads the processes that LLM(...) starts; with address the engine is another's: read "
                "http://HOST:PORT/metrics of each of its processes, where PORT is its --metrics-port (pageloom serve: "
                "--scheduler-metrics-port and --worker-metrics-port)"
            )
        return read_metrics(stack.metrics_urls)

    def reset_prefix_cache(self) -> bool:
        """What was computed so far serves no later prompt."""
        self._running.reset_prefix_cache()
        return True

    def _open(self, held: Held[Engine]) -> Engine:
        try:
            with naming_arguments():
                return self._thread.run(held.open())
        except BaseException:
            self._close()
            raise

    @property
    def _running(self) -> Engine:
        if not self._close.alive:
            raise RuntimeError("the LLM has been shut down")
        return self._engine

    def _answer(
        self, asked: Sequence[Asked], priority: int | Sequence[int] | None, *, use_tqdm: bool
    ) -> list[RequestOutput]:
        engine = self._running
        priorities = args.priority_each(len(asked), priority)

        async def answer(count: Callable[[int], object]) -> list[RequestOutput]:
            questions = await args.ask_each(engine, asked, priorities)
            return await engine.answer_all(questions, lambda output: count(_num_tokens(output)))

        with _counting(len(asked), use_tqdm) as count:
            return self._thread.run(answer(count))

    def _pool(self, prompts: Sequence[Prompt], use_tqdm: bool) -> list[Pooled]:
        with _counting(len(prompts), use_tqdm) as count:
            return self._thread.run(
                pool_all(self._running, prompts, lambda pooled: count(len(pooled.prompt.token_ids)))
            )


@contextmanager
def _counting(num_prompts: int, use_tqdm: bool) -> Generator[Callable[[int], object]]:
    """What to tell the tokens of each answer."""
    console = Console(stderr=True)
    if not (use_tqdm and num_prompts and (console.is_terminal or console.is_jupyter)):
        yield lambda _num_tokens: None
        return
    with BatchProgress(console, num_prompts) as progress:
        yield partial(progress.count, failed=False)


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(choice.token_ids) for choice in output.outputs)


def _score(one: Pooled, other: Pooled) -> ScoringRequestOutput:
    return ScoringRequestOutput(
        request_id=one.request_id,
        prompt_token_ids=[*one.prompt.token_ids, *other.prompt.token_ids],
        num_cached_tokens=one.num_cached_tokens + other.num_cached_tokens,
        outputs=outputs.ScoringOutput(score=float(one.unit_vector @ other.unit_vector)),
    )


def _close(thread: LoopThread, held: Held[Engine]) -> None:
    if thread.is_foreign:
        # The engine goes on for whom it belongs to.
        return
    if thread.is_current:
        # An LLM that nobody has shut down may be found by the garbage collector there.
        thread.run_soon(held.close())
    else:
        thread.run(held.close())
