"""Which choices are open, and what has been counted? The one place where a choice ends."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from pageloom.outputs import ChoiceFinished, FinishReason
from pageloom.timeline import Timeline
from scheduler_svc.core.emission import ChoiceFacts, End, Ending
from scheduler_svc.core.history import History
from scheduler_svc.core.sequence import Sequence

# Requests that ended and are still explained.
MAX_REMEMBERED_REQUESTS = 1024


@dataclass(slots=True)
class Counters:
    """Since the core's start; `Stats` documents each."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    prefix_cache_queried_tokens: int = 0
    prefix_cache_hit_tokens: int = 0
    num_preemptions: int = 0
    num_lost_workers: int = 0
    num_finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


class Registry:
    """The unfinished choices of each request. A request_id is free again once all have finished."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, Sequence]] = {}
        # Of the choices of each request that is open or ended lately.
        self._remembered: OrderedDict[str, tuple[History, ...]] = OrderedDict()
        self.counters = Counters()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, sequences: list[Sequence]) -> None:
        self._open[request_id] = {sequence.choice_index: sequence for sequence in sequences}
        self._remembered[request_id] = tuple(sequence.history for sequence in sequences)
        self._remembered.move_to_end(request_id)

    def choices(self, request_id: str) -> dict[int, Sequence]:
        """The unfinished choices of a request by index; empty if there are none."""
        return dict(self._open.get(request_id, ()))

    def sequences(self) -> list[Sequence]:
        return [sequence for choices in self._open.values() for sequence in choices.values()]

    def finish(self, sequence: Sequence, end: End, now: float) -> Ending:
        """Ends a choice: its one terminal event. Slot and blocks are the caller's to give back."""
        assert not sequence.finished, "a choice ends once"
        sequence.finished = True
        sequence.history.ends(now)
        self._close(sequence)
        self.counters.num_finished[end.reason] += 1
        event = ChoiceFinished(
            choice_index=sequence.choice_index,
            reason=end.reason,
            num_output_tokens=sequence.num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            stop_token_id=end.stop_token_id,
            error_message=end.error_message,
            error_param=end.error_param,
            timeline=sequence.history.timeline() if sequence.request.include_timeline else None,
            embedding=end.embedding,
        )
        return Ending(sequence.key, sequence.request_id, event, _facts(sequence))

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        """Those of a request's choices, if it is open or ended lately."""
        histories = self._remembered.get(request_id)
        return None if histories is None else tuple(history.timeline() for history in histories)

    def _close(self, sequence: Sequence) -> None:
        choices = self._open[sequence.request_id]
        del choices[sequence.choice_index]
        if choices:
            return
        del self._open[sequence.request_id]
        self._remembered.move_to_end(sequence.request_id)
        while len(self._remembered) > MAX_REMEMBERED_REQUESTS + len(self._open):
            oldest = next(iter(self._remembered))
            if oldest in self._open:
                self._remembered.move_to_end(oldest)
            else:
                del self._remembered[oldest]


def _facts(sequence: Sequence) -> ChoiceFacts:
    return ChoiceFacts(
        num_prompt_tokens=sequence.num_prompt_tokens,
        arrived_at=sequence.arrived_at,
        admitted_at=sequence.admitted_at,
        first_token_at=sequence.first_token_at,
        num_preemptions=sequence.num_preemptions,
    )
