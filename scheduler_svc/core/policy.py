"""The choices that could be made otherwise: places in queue and memory, reserves, chunks, victims. Pure functions."""

from __future__ import annotations

from pageloom.policies import SchedulingPolicy
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.sequence import Binding, Order
from scheduler_svc.core.worker_group import WorkerGroup

# Of all newcomers' known tokens in one plan. Cached ones cost no budget but travel all the same, so without a
# bound a plan could outgrow the largest message; this keeps it near a megabyte. One newcomer is always let in.
MAX_ADMITTED_TOKENS = 1 << 18
# The same for their grammars, allowed tokens and bad words, which every choice brings along.
MAX_ADMITTED_CONSTRAINT_BYTES = 1 << 22

# What a tenant is charged for: a generated token takes a whole step's turn, a prompt token a share of one.
# The weights of the Virtual Token Counter's authors.
PROMPT_TOKEN_WEIGHT = 1
OUTPUT_TOKEN_WEIGHT = 2
# Guessed tokens take at most a half of a step.
DRAFTS_PART = 2


def queue_order(limits: Limits, *, priority: int, arrived_at: float, arrival: int, choice_index: int) -> Order:
    """A place in the queue: smaller goes first. A choice keeps it for life, so one that was preempted or lost
    its worker returns to the front.

    Ageing needs no clock: who came `priority_ageing_s` later at one level higher is level with the other
    from the start, and both age alike.
    """
    if limits.scheduling_policy is SchedulingPolicy.fcfs:
        return (0.0, arrival, choice_index)
    return (arrived_at + priority * limits.priority_ageing_s, arrival, choice_index)


def memory_order(limits: Limits, order: Order, admission: int) -> Order:
    """A place in memory, taken at the first admission: the last one is preempted first. It is the queue's, but
    between tenants the queue's order moves, so there it is the order in which they got in."""
    if limits.scheduling_policy is SchedulingPolicy.fair:
        return (0.0, admission, 0)
    return order


def chunk_len(num_remaining_tokens: int, budget: int) -> int:
    """How many of a sequence's remaining known tokens run in a step that has `budget` tokens left."""
    return min(num_remaining_tokens, budget)


def draft_limit(worth: int, num_decodes: int, budget: int) -> int:
    """How many drafts each of the sequences that continue may run: as many as the worker finds worth it, as long as
    all of them together leave a part of the step for prompts."""
    return min(worth, budget // (DRAFTS_PART * max(1, num_decodes)))


def victim_for(claimant: Binding, group: WorkerGroup) -> Binding | None:
    """Who is preempted so that `claimant` can grow: the last in memory, and nobody for the sake of a later one.

    One that was preempted before is let be until it has drawn a token: it has all blocks that it needs for
    that, so it gets there, and everyone in the end. None means that the claimant has to wait.
    """
    for binding in group.bound.last_first():
        if binding is claimant:
            return None
        if not group.columns.active[binding.slot]:
            continue
        if binding.sequence.num_preemptions and group.columns.num_drawn[binding.slot] == binding.num_known_at_start:
            continue
        return binding
    return None
