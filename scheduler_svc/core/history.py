"""What does a timeline say? Collected while a choice lives; nothing decides by it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pageloom.timeline import Run, Timeline, Wait, WaitReason

# Two reasons may alternate for as long as a choice waits.
MAX_ENTRIES = 64


@dataclass(slots=True, eq=False)
class History:
    """The waits and runs of one choice; times are `now` arguments until `timeline` makes them relative."""

    arrived_at: float
    first_token_at: float | None = None
    finished_at: float | None = None
    _waits: list[Wait] = field(default_factory=list)
    _runs: list[Run] = field(default_factory=list)

    def waits(
        self,
        reason: WaitReason,
        now: float,
        *,
        num_ahead: int = 0,
        behind: tuple[str, ...] = (),
        num_missing_blocks: int = 0,
    ) -> None:
        """It waits for this reason from now on; if it did before, at most whom it waits for is new."""
        last = self._waits[-1] if self._waits else None
        if last is not None and last.end_s is None:
            if last.reason is reason and num_ahead:
                self._waits[-1] = replace(last, num_ahead=num_ahead, behind_request_ids=behind)
            if last.reason is reason or len(self._waits) >= MAX_ENTRIES:
                return
            num_ahead, behind = num_ahead or last.num_ahead, behind or last.behind_request_ids
            self._end_wait(now)
        self._waits.append(
            Wait(
                reason=reason,
                start_s=now,
                num_ahead=num_ahead,
                behind_request_ids=behind,
                num_missing_blocks=num_missing_blocks,
            )
        )

    def starts(self, worker_id: str, num_cached_tokens: int, now: float) -> None:
        self._end_wait(now)
        if len(self._runs) < MAX_ENTRIES:
            self._runs.append(Run(worker_id=worker_id, start_s=now, num_cached_tokens=num_cached_tokens))

    def runs(self, num_steps: int, num_held_steps: int) -> None:
        """How far its present run has come."""
        if self._runs and self._runs[-1].end_s is None:
            self._runs[-1] = replace(self._runs[-1], num_steps=num_steps, num_held_steps=num_held_steps)

    def stops(
        self, now: float, *, num_steps: int, num_held_steps: int, preempted_by: str = "", worker_lost: bool = False
    ) -> None:
        """It leaves its slot."""
        if self._runs and self._runs[-1].end_s is None:
            self._runs[-1] = replace(
                self._runs[-1],
                end_s=now,
                num_steps=num_steps,
                num_held_steps=num_held_steps,
                preempted_by=preempted_by,
                worker_lost=worker_lost,
            )

    def ends(self, now: float) -> None:
        self._end_wait(now)
        self.finished_at = now

    def timeline(self) -> Timeline:
        return Timeline(
            waits=tuple(
                replace(wait, start_s=self._since(wait.start_s), end_s=self._maybe_since(wait.end_s))
                for wait in self._waits
            ),
            runs=tuple(
                replace(run, start_s=self._since(run.start_s), end_s=self._maybe_since(run.end_s)) for run in self._runs
            ),
            first_token_s=self._maybe_since(self.first_token_at),
            finished_s=self._maybe_since(self.finished_at),
        )

    def _end_wait(self, now: float) -> None:
        if self._waits and self._waits[-1].end_s is None:
            self._waits[-1] = replace(self._waits[-1], end_s=now)

    def _since(self, at: float) -> float:
        return at - self.arrived_at

    def _maybe_since(self, at: float | None) -> float | None:
        return None if at is None else at - self.arrived_at
