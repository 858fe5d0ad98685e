"""What runs on a worker between a plan and its commit?"""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.plan import BatchPlan
from scheduler_svc.core.emission import StepFacts
from scheduler_svc.core.sequence import Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A plan in flight: its runs with their tokens, and the slots that have to come back with a token."""

    plan: BatchPlan
    runs: tuple[tuple[Binding, int], ...]
    drawing_slots: frozenset[int]
    facts: StepFacts
