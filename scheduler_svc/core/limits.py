"""What may the scheduler hold and batch, and by which policies? The part of the configuration that the core needs."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.policies import Placement, SchedulingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Each worker runs within the smaller of these and its own limits.

    `max_num_queued_seqs` counts choices. A choice whose run was lost with its worker `max_num_lost_runs` times,
    without a finished run in between, is ended: it may be what kills them. `max_num_steps_in_flight` plans may be
    out at one worker; `priority_ageing_s` seconds in the queue outweigh one level of priority.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_seqs: int
    enable_prefix_caching: bool = True
    max_num_lost_runs: int = 3
    max_num_steps_in_flight: int = 2
    scheduling_policy: SchedulingPolicy = SchedulingPolicy.fair
    placement: Placement = Placement.cache_aware
    priority_ageing_s: float = 60.0
