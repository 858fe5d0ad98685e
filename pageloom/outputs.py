"""What comes back from the engine: token ids, log-probabilities, and why a choice ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
class TokensGenerated:
    """New tokens of one choice; `first_index` counts from its first output token.

    `logprobs` has one entry per token if the request asked for them, otherwise it is empty.
    """

    choice_index: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """The last event of one choice. `num_output_tokens` counts resumed tokens too; `timeline` comes if asked for."""

    choice_index: int
    reason: FinishReason
    num_output_tokens: int
    num_cached_tokens: int
    stop_token_id: int | None = None
    error_message: str = ""
    timeline: Timeline | None = None


GenerateEvent = TokensGenerated | ChoiceFinished
