"""What is known of one choice, and how far a worker has come with it."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.outputs import FinishReason
from pageloom.requests import GenerateRequest
from scheduler_svc.core.prefix_cache import HashChain, Prefix


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice of a request: its tokens, when it ends, and what the shell wants to know of it.

    It waits (no binding), runs (bound to a slot), may go back to waiting (preempted, worker lost),
    and finishes once. A choice cancelled during a step is finished but bound until that step's commit.
    """

    request: GenerateRequest
    request_id: str
    choice_index: int
    num_prompt_tokens: int
    order: tuple[int, int, int]  # (priority, arrival, choice_index): smaller goes first, in the queue and in memory
    stop_token_ids: frozenset[int]
    arrived_at: float
    token_ids: list[int]
    max_tokens: int
    wants_logprobs: bool
    binding: Binding | None = None
    finished: bool = False
    hash_chain: HashChain | None = None
    num_cached_tokens: int = 0
    num_lost_runs: int = 0
    num_preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def max_num_kv_tokens(self) -> int:
        """Tokens whose KV it needs at its longest: nothing reads that of its last token."""
        return self.num_prompt_tokens + self.max_tokens - 1

    def append(self, token_id: int, now: float) -> FinishReason | None:
        """Adds a generated token; the reason if it ends the choice."""
        self.token_ids.append(token_id)
        if self.first_token_at is None:
            self.first_token_at = now
        num_output_tokens = len(self.token_ids) - self.num_prompt_tokens
        # Before min_tokens the sampler masks what would stop; a stop token there was not meant as one.
        if token_id in self.stop_token_ids and num_output_tokens > self.request.sampling.min_tokens:
            return FinishReason.STOP
        if num_output_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None


@dataclass(slots=True, eq=False, kw_only=True)
class Binding:
    """A sequence's place in one worker: slot, block table, progress. It dies whole, so nothing stale survives it.

    The KV of the first `num_computed_tokens` is written and acknowledged. `continues` mirrors the
    worker: the last run drew a token, so the next one needs no word in the plan. The first
    `num_published_blocks` are offered to the prefix cache; `published` is the last of them, or the
    namespace.
    """

    sequence: Sequence
    order: tuple[int, int, int]  # the sequence's
    worker_id: str
    slot: int
    block_ids: list[int]
    num_computed_tokens: int
    num_published_blocks: int
    published: Prefix
    continues: bool = False

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens without KV. A run of all of them draws the next."""
        return len(self.sequence.token_ids) - self.num_computed_tokens
