"""Who waits for which worker? Entering and leaving the queue, with the homes that placement gives."""

from __future__ import annotations

from pageloom.timeline import WaitReason
from scheduler_svc.core.placement import Placer
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.waiting import WaitingQueue
from scheduler_svc.core.worker_group import WorkerGroup


class Homes:
    """Keeps each group's count of who in the queue is meant for it; `groups` is the scheduler's."""

    def __init__(self, waiting: WaitingQueue, groups: dict[str, WorkerGroup], placer: Placer) -> None:
        self._waiting = waiting
        self._groups = groups
        self._placer = placer

    def enter(self, sequence: Sequence, now: float) -> None:
        """Puts a sequence into the queue, at its old place if it was there before."""
        self._waiting.add(sequence)
        home = self._home_of(sequence)
        # One that was preempted keeps its home, unless that gets no new work by now.
        if home is None or home.draining:
            self._placer.place(sequence, self._groups.values())
        self._count(sequence, 1)
        num_ahead, behind = self._waiting.ahead_of(sequence)
        reason = WaitReason.WORKER if sequence.home is None else WaitReason.QUEUE
        sequence.history.waits(reason, now, num_ahead=num_ahead, behind=behind)

    def leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of the queue."""
        self._waiting.remove(sequence)
        self._count(sequence, -1)

    def renew(self, now: float) -> None:
        """The workers are others now: finds homes for those in the queue that have none."""
        for sequence in self._waiting:
            home = self._home_of(sequence)
            if home is not None and not home.draining:
                continue
            self._count(sequence, -1)
            self._placer.place(sequence, self._groups.values())
            self._count(sequence, 1)
            if sequence.home is None:
                sequence.history.waits(WaitReason.WORKER, now)

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the home of a sequence in the queue could admit it now."""
        home = self._home_of(sequence)
        return home is not None and home.has_room(sequence)

    def _count(self, sequence: Sequence, sign: int) -> None:
        home = self._home_of(sequence)
        if home is not None:
            home.num_homed_seqs += sign
            home.num_homed_tokens += sign * sequence.num_homed_tokens

    def _home_of(self, sequence: Sequence) -> WorkerGroup | None:
        return None if sequence.home is None else self._groups.get(sequence.home)
