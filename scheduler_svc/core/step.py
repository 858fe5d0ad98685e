"""What runs on a worker between a plan and its commit?"""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.plan import BatchPlan
from scheduler_svc.core.emission import StepFacts
from scheduler_svc.core.slot_columns import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A plan in flight: the slots that run, those of them that have to come back with tokens or with an embedding, and
    the prompt tokens by index whose log-probabilities have to come back. `draft_limits` are None if the worker guesses
    no tokens.

    No slot changes its sequence before the commit of the last step that names it, so slots say enough.
    """

    plan: BatchPlan
    decode_slots: Ints  # one token each and drafts besides, ascending
    draft_limits: Ints | None  # parallel to decode_slots
    chunk_slots: Ints
    chunk_lens: Ints
    drawing_slots: Ints
    scored_tokens: dict[int, range]  # by slot
    pooled_slots: tuple[int, ...]
    facts: StepFacts
