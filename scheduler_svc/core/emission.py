"""What does the core tell the shell? Frozen values and columns; times are the `now` arguments it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageloom.outputs import ChoiceFinished, FinishReason, PromptLogprobs, TokenLogprobs
from pageloom.plan import CacheInfo


class NewTokens(NamedTuple):
    """The tokens of one commit, those of one choice in order: parallel columns.

    `keys` are those that `submit` returned; `indexes` count from a choice's first output token.
    `logprobs` has an entry for each token whose choice asked, and is empty if none did.
    """

    keys: NDArray[np.int64]
    indexes: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    logprobs: list[TokenLogprobs | None]


class ScoredPrompt(NamedTuple):
    """The next log-probabilities of a prompt, for the choice of this key, which is the first of its request."""

    key: int
    logprobs: PromptLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFacts:
    """A finished choice's life. `admitted_at` and `first_token_at` are None if it never came so far."""

    num_prompt_tokens: int
    arrived_at: float
    admitted_at: float | None
    first_token_at: float | None
    num_preemptions: int


class End(NamedTuple):
    """How a choice ends; what does not apply is empty."""

    reason: FinishReason
    stop_token_id: int | None = None
    error_message: str = ""
    error_param: str = ""
    embedding: bytes = b""


class Ending(NamedTuple):
    """The last event of one choice."""

    key: int
    request_id: str
    event: ChoiceFinished
    facts: ChoiceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The size of one step. `num_decode_seqs` of its `num_seqs` continue by one token."""

    num_seqs: int
    num_tokens: int
    num_decode_seqs: int
    num_admitted: int
    num_preempted: int


class Committed(NamedTuple):
    """What a step brought. Those of prompts come first, then tokens, then endings; `facts` is None if the result
    was ignored."""

    tokens: NewTokens
    endings: list[Ending]
    facts: StepFacts | None
    prompt_logprobs: tuple[ScoredPrompt, ...] = ()


_NOTHING = np.zeros(0, np.int64)
NO_TOKENS = NewTokens(_NOTHING, _NOTHING, _NOTHING, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker's memory. Free blocks may still hold cached content, so the counts overlap."""

    worker_id: str
    epoch: int
    cache: CacheInfo
    num_running: int
    num_free_blocks: int
    num_cached_blocks: int
    draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The core at one moment; everything after `workers` counts from its start.

    `num_prompt_tokens` counts the prompts of first admissions, as do the two of the prefix cache.
    """

    num_running: int
    num_waiting: int
    workers: tuple[WorkerStats, ...]
    num_prompt_tokens: int
    num_generation_tokens: int
    prefix_cache_queried_tokens: int
    prefix_cache_hit_tokens: int
    num_preemptions: int
    num_lost_workers: int
    num_finished: Mapping[FinishReason, int]
