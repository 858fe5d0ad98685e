"""What does the core tell the shell? Frozen values; times are the `now` arguments it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pageloom.outputs import FinishReason, GenerateEvent
from pageloom.plan import CacheInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFacts:
    """A finished choice's life. `admitted_at` and `first_token_at` are None if it never came so far."""

    num_prompt_tokens: int
    arrived_at: float
    admitted_at: float | None
    first_token_at: float | None
    num_preemptions: int


class Emission(NamedTuple):
    """One event of one request. `facts` comes with each choice's ChoiceFinished.

    A named tuple because there is one for each running choice in each step, and a frozen dataclass
    takes twice as long to build.
    """

    request_id: str
    event: GenerateEvent
    facts: ChoiceFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The size of one step. `num_decode_seqs` of its `num_seqs` continue by one token."""

    num_seqs: int
    num_tokens: int
    num_decode_seqs: int
    num_admitted: int
    num_preempted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker's memory. Free blocks may still hold cached content, so the counts overlap."""

    worker_id: str
    epoch: int
    cache: CacheInfo
    num_running: int
    num_free_blocks: int
    num_cached_blocks: int


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
