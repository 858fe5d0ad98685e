"""Can a step begin at the first stage while those before it are still at the last one?"""

from __future__ import annotations

from collections.abc import Collection

from pageloom.plan import BatchPlan
from worker_svc.slots import Runs


def is_independent(plan: BatchPlan, unfinished: Collection[Runs]) -> bool:
    """Whether nothing in `plan` waits for what the `unfinished` steps draw, or ends their slots.

    The next chunk of a prompt waits for nothing: it needs the one before it only at each stage, in order.
    """
    if plan.snapshot:
        # Nothing of what was bound stays.
        return not unfinished
    held, released = set(plan.held_slots), set(plan.released_slots)
    return all(
        held.issuperset(runs.draw_slots.tolist()) and released.isdisjoint(runs.slots.tolist()) for runs in unfinished
    )
