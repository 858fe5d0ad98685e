"""The choices that could be made otherwise: order, who is admitted, chunk size, victim. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.sequence import Binding, Sequence


def scheduling_order(priority: int, arrival: int, choice_index: int) -> tuple[int, int, int]:
    """Smaller goes first, in the queue and in memory. A choice keeps its place for life, so one that was
    preempted or lost its worker returns to the front of its priority."""
    return (priority, arrival, choice_index)


def next_to_admit(waiting: Iterable[Sequence], num_kv_tokens: int) -> Sequence | None:
    """The choice that a worker with room for `num_kv_tokens` admits next; it waits if there is no room yet.

    The first in order that the worker could ever hold. Strictly so: while a large one waits for blocks,
    smaller ones behind it wait too, and it cannot starve. Letting some of them pass, and placing by
    prefix hit and load instead of "whichever worker plans", both belong here.
    """
    return next((sequence for sequence in waiting if sequence.max_num_kv_tokens <= num_kv_tokens), None)


# Of all newcomers' known tokens in one plan. Cached ones cost no budget but travel all the same, so without a
# bound a plan could outgrow the largest message; this keeps it near a megabyte. One newcomer is always let in.
MAX_ADMITTED_TOKENS = 1 << 18


def num_reserved_blocks(num_bound: int) -> int:
    """Blocks that an admission must leave free for the growth of those already bound.

    One for each: whoever is bound can go on for a block's worth of tokens before the newcomer would
    have to be preempted again, its prefill wasted. Zero on an empty worker, which takes anything that fits.
    Simulated under memory-bound load, this leaves 10-30% of the preemptions that no reserve gives, at equal throughput.
    """
    return num_bound


def chunk_len(num_remaining_tokens: int, budget: int) -> int:
    """How many of a sequence's remaining known tokens run in a step that has `budget` tokens left."""
    return min(num_remaining_tokens, budget)


def victim_for(claimant: Binding, bound: Ordered[Binding]) -> Binding | None:
    """Who is preempted so that `claimant` can grow: the last in order, and nobody for the sake of a later one.

    None means that the claimant is the last and has to wait. So the first in order always gets on,
    and as each sequence fits the whole memory alone, everyone does in the end.
    """
    return bound.last if bound.last is not claimant else None
