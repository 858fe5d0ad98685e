"""What is known of one choice, and its place in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageloom.outputs import FinishReason
from pageloom.policies import Pooling
from pageloom.requests import GenerateRequest
from scheduler_svc.core.history import History
from scheduler_svc.core.prefix_cache import HashChain, Prefix, TokenIds

Order = tuple[float, int, int]


@dataclass(slots=True, eq=False)
class Tenant:
    """Whose requests these are, and how much they were served: Sheng et al.'s virtual token counter."""

    name: str
    index: int
    num_served: int = 0
    num_open: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice of a request: its tokens, when it ends, and what the shell wants to know of it.

    It waits (no binding), runs (bound to a slot), may go back to waiting (preempted, worker lost), and finishes
    once. One that ends or is preempted while steps are in flight stays bound until they are committed.
    While it is bound, its newest tokens are in its slot's tail: `WorkerGroup.flush` brings them here.
    """

    key: int
    request: GenerateRequest
    request_id: str
    choice_index: int
    num_prompt_tokens: int
    # Its place in the queue, for life: smaller goes first.
    order: Order
    tenant: Tenant
    stop_token_ids: frozenset[int]
    arrived_at: float
    token_ids: TokenIds
    max_tokens: int
    wants_logprobs: bool
    # Leading prompt tokens whose log-probabilities were told already, or will not be: all, unless they are wanted.
    num_scored_tokens: int
    history: History
    # All choices of its request, this one too.
    siblings: list[Sequence]
    # Its place in memory, for life, from its first admission on: the last one is preempted first.
    memory_order: Order | None = None
    home: str | None = None
    # What it counts for at its home while it waits: its tokens that are not cached there.
    num_homed_tokens: int = 0
    binding: Binding | None = None
    finished: bool = False
    hash_chains: dict[int, HashChain] = field(default_factory=dict)
    # Blocks of those that were admitted while this one, before them in the queue, waited for blocks.
    num_passed_blocks: int = 0
    # After a plan in which blocks were short: the worker's epoch, free blocks at which it is looked at again, and
    # the step from which on it is in any case.
    retry: tuple[int, int, int] | None = None
    num_cached_tokens: int = 0
    num_lost_runs: int = 0
    num_preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_scoring(self) -> bool:
        """Log-probabilities of its prompt are still to be told."""
        return self.num_scored_tokens < self.num_prompt_tokens

    @property
    def takes_cached_blocks(self) -> bool:
        """What of its prompt is cached is not computed again."""
        return not self.is_scoring and self.request.pooling is not Pooling.mean

    @property
    def num_reusable_tokens(self) -> int:
        """Leading tokens that it need not run itself: the last of all gives the next token, each before a prompt token
        that is to be scored gives that one's log-probability, and every one is a part of a mean."""
        if self.request.pooling is Pooling.mean:
            return 0
        return (self.num_scored_tokens if self.is_scoring else len(self.token_ids)) - 1

    @property
    def turn(self) -> tuple[int, Order]:
        """Whose turn it is: the smallest goes first, until tenants are served more."""
        return (self.tenant.num_served, self.order)

    @property
    def max_len(self) -> int:
        return self.num_prompt_tokens + self.max_tokens

    @property
    def max_num_kv_tokens(self) -> int:
        """Tokens whose KV it needs at its longest: nothing reads that of its last token, if that is drawn."""
        return self.max_len - (self.request.pooling is None)

    def end_after(self, token_id: int, num_known_tokens: int) -> FinishReason | None:
        """Why the choice ends with its token `token_id`, the last of `num_known_tokens`; None if it goes on."""
        # Before min_tokens the sampler masks what would stop; a stop token there was not meant as one.
        num_output_tokens = num_known_tokens - self.num_prompt_tokens
        if token_id in self.stop_token_ids and num_output_tokens > self.request.sampling.num_tokens_before_stop:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_known_tokens >= self.max_len else None


@dataclass(slots=True, eq=False, kw_only=True)
class Binding:
    """A sequence's place in one worker: slot and block table. It dies whole, so nothing stale survives it.

    The first `num_published_blocks` are offered to the prefix cache; `published` is the last of them, or the
    namespace. The full blocks of its known tokens up to `num_promised_blocks` are promised to those that wait
    for the same prefix. `num_known_at_start` tokens were known, and `num_scored_at_start` of the prompt scored, when
    it was bound. After a failed run nothing of it is published.
    """

    sequence: Sequence
    order: Order  # the sequence's memory_order
    worker_id: str
    slot: int
    block_ids: list[int]
    num_known_at_start: int
    num_scored_at_start: int
    num_published_blocks: int
    num_promised_blocks: int
    published: Prefix
    failed: bool = False
