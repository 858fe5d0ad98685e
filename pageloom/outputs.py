"""What comes back from the engine: token ids, log-probabilities, and why a choice ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pageloom.errors import DeadlineExceeded, EngineError, InvalidRequest, Unavailable
from pageloom.timeline import Timeline


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of one generated token and of the likeliest ones, best first.

    They are of the model's distribution before temperature, penalties and masks (vLLM's raw_logprobs).
    """

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens, from the one at `first_index` (at least 1) on.

    Each is of the model's distribution after the tokens before it; ranks count from 1, the likeliest. The likeliest
    tokens, best first and as many for each token, follow each other in the two last columns.
    """

    first_index: int
    logprobs: tuple[float, ...]  # [tokens]
    ranks: tuple[int, ...]  # [tokens]
    top_token_ids: tuple[int, ...]  # [tokens * top]
    top_logprobs: tuple[float, ...]  # [tokens * top]

    def of_token(self, index: int) -> TokenLogprobs:
        """Those of the prompt token at an absolute index, which must be among them."""
        num_top = len(self.top_token_ids) // len(self.logprobs)
        row = index - self.first_index
        top = slice(row * num_top, (row + 1) * num_top)
        return TokenLogprobs(self.logprobs[row], self.top_token_ids[top], self.top_logprobs[top])


class TokensGenerated(NamedTuple):
    """New tokens of one choice; `first_index` counts from its first output token.

    `logprobs` has one entry per token if the request asked for them, otherwise it is empty. One is made for each token
    of a stream, and a tuple is made several times faster than a dataclass.
    """

    choice_index: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """The last event of one choice. `num_output_tokens` counts resumed tokens too; `timeline` comes if asked for.
    With an error, `error_param` is the field of the request that is at fault, "" if none is.

    `embedding` is that of a prompt that was to be pooled, as little-endian float32 [hidden], and empty otherwise.
    """

    choice_index: int
    reason: FinishReason
    num_output_tokens: int
    num_cached_tokens: int
    stop_token_id: int | None = None
    error_message: str = ""
    error_param: str = ""
    timeline: Timeline | None = None
    embedding: bytes = b""

    def require_success(self, *, grammar_field: str = "") -> None:
        """Raises EngineError or Unavailable if the engine gave up, DeadlineExceeded if it had no more time,
        InvalidRequest if the request is at fault. What the engine knows as its grammar came from `grammar_field`."""
        if self.reason is FinishReason.ERROR and self.error_param:
            raise InvalidRequest(self.error_message, param=self.error_param).for_caller(grammar_field)
        if self.reason is FinishReason.ERROR:
            raise EngineError(self.error_message or "the engine failed")
        if self.reason is FinishReason.CANCELLED:
            raise Unavailable(self.error_message or "the engine cancelled the request")
        if self.reason is FinishReason.DEADLINE:
            raise DeadlineExceeded(self.error_message or "the request's deadline passed before it was answered")


# Those of the prompt come without gap or repeat, before the first tokens of choice 0.
GenerateEvent = PromptLogprobs | TokensGenerated | ChoiceFinished
