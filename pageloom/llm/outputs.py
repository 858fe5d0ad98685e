"""What `LLM` and `AsyncLLM` give back, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pageloom.timeline import Timeline

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token at one place, under the model's distribution before temperature, penalties and masks. `rank` counts
    from 1, the likeliest; None for a drawn token that is not among those asked for."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened: seconds since the epoch, and None for what did not. `timelines` say of each answer what it
    waited for and where it ran."""

    arrival_time: float
    scheduled_ts: float | None
    first_token_ts: float | None
    last_token_ts: float | None
    num_generation_tokens: int
    timelines: tuple[Timeline, ...]

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_ts is None else self.first_token_ts - self.arrival_time


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """`arguments` is JSON text as the model wrote it, of a custom tool its input: cut short if the answer was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The parts of the text: what the model says, what it thought before, and the tools that it calls."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer. `token_ids` count the token that ended it. `logprobs` hold an entry for each token, by token id: the
    drawn token and the likeliest; `cumulative_logprob` is the sum of the drawn; both only if they were asked for.
    `stop_reason` is the stop string or the requested stop token that ended it. `message` is the answer to a chat with
    tools, or of a model that thinks, once it is complete; `text` is all of it as the model wrote it."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    message: ChatAnswer | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The answers to one prompt, so far or, if `finished`, in all. `prompt` is None if it was given as token ids.
    `prompt_logprobs` hold None for the first token, then an entry for each, if they were asked for."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """[hidden] floats, of length 1 unless that was not wanted."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOutput:
    """The cosine of the angle between two embeddings, from -1 to 1."""

    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOutput:
    """`data` is a numpy array of float32 [hidden]."""

    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _PooledOutput:
    request_id: str
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput(_PooledOutput):
    """Of one prompt."""

    outputs: EmbeddingOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequestOutput(_PooledOutput):
    """Of one prompt."""

    outputs: PoolingOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRequestOutput(_PooledOutput):
    """Of one pair, whose tokens follow each other."""

    outputs: ScoringOutput
