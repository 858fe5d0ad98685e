"""Which worker shall a waiting sequence go to? Its home: where the least is left to compute."""

from __future__ import annotations

from collections.abc import Collection

from pageloom.policies import Placement
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.worker_group import WorkerGroup

# What a sequence that runs, or will, costs the others there, in prompt tokens' worth of work.
RUNNING_SEQUENCE_TOKENS = 64


class Placer:
    """Chooses homes. A home is a wish: a worker that has room takes what its home has no room for."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._num_placed = 0

    def place(self, sequence: Sequence, groups: Collection[WorkerGroup]) -> None:
        """Gives a sequence that waits a home, or none if no worker can take it now."""
        eligible = [group for group in groups if not group.draining and group.holds(sequence)]
        home = self._choose(sequence, eligible)
        sequence.home = None if home is None else home.hello.worker_id
        sequence.num_homed_tokens = 0 if home is None else self._num_missing_tokens(sequence, home)

    def _choose(self, sequence: Sequence, groups: list[WorkerGroup]) -> WorkerGroup | None:
        if len(groups) <= 1:
            return groups[0] if groups else None
        # The choices of one request share its prompt's blocks, so they stay together.
        for sibling in sequence.siblings:
            for group in groups:
                if sibling is not sequence and not sibling.finished and sibling.home == group.hello.worker_id:
                    return group
        if self._placement is Placement.round_robin:
            self._num_placed += 1
            return groups[self._num_placed % len(groups)]
        most_cache_tokens = max(group.num_cache_tokens for group in groups)
        return min(groups, key=lambda group: self._cost(sequence, group, most_cache_tokens))

    def _cost(self, sequence: Sequence, group: WorkerGroup, most_cache_tokens: int) -> float:
        """Tokens to compute before the sequence has its first, on a worker as strong as the largest."""
        columns = group.columns
        num_behind_tokens = sum(
            int(columns.num_known[binding.slot] - columns.num_planned[binding.slot]) for binding in group.catching_up
        )
        num_seqs = group.num_homed_seqs + len(group.bound)
        load = group.num_homed_tokens + num_behind_tokens + RUNNING_SEQUENCE_TOKENS * num_seqs
        return self._num_missing_tokens(sequence, group) + load * most_cache_tokens / group.num_cache_tokens

    def _num_missing_tokens(self, sequence: Sequence, group: WorkerGroup) -> int:
        if self._placement is not Placement.cache_aware:
            return len(sequence.token_ids)
        hits = group.tables.cached_prefix(sequence, group.namespace_of(sequence))
        return len(sequence.token_ids) - len(hits) * group.tables.block_size
