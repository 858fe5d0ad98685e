"""What may the scheduler hold and batch? The part of the configuration that the core needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Each worker runs within the smaller of these and its own limits.

    `max_num_queued_seqs` counts choices. A choice whose run was lost with its worker
    `max_num_lost_runs` times, without a finished run in between, is ended: it may be what kills them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_seqs: int
    enable_prefix_caching: bool = True
    max_num_lost_runs: int = 3
