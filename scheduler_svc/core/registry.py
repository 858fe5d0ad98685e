"""Which choices are open, and what has been counted? The one place where a choice ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageloom.outputs import ChoiceFinished, FinishReason
from scheduler_svc.core.emission import ChoiceFacts, Emission
from scheduler_svc.core.sequence import Sequence


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
        self.counters = Counters()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, sequences: list[Sequence]) -> None:
        self._open[request_id] = {sequence.choice_index: sequence for sequence in sequences}

    def choices(self, request_id: str) -> dict[int, Sequence]:
        """The unfinished choices of a request by index; empty if there are none."""
        return dict(self._open.get(request_id, ()))

    def sequences(self) -> list[Sequence]:
        return [sequence for choices in self._open.values() for sequence in choices.values()]

    def finish(
        self, sequence: Sequence, reason: FinishReason, *, stop_token_id: int | None = None, error_message: str = ""
    ) -> Emission:
        """Ends a choice: its one terminal event. Slot and blocks are the caller's to give back."""
        assert not sequence.finished, "a choice ends once"
        sequence.finished = True
        request_id = sequence.request_id
        del self._open[request_id][sequence.choice_index]
        if not self._open[request_id]:
            del self._open[request_id]
        self.counters.num_finished[reason] += 1
        event = ChoiceFinished(
            choice_index=sequence.choice_index,
            reason=reason,
            num_output_tokens=sequence.num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens,
            stop_token_id=stop_token_id,
            error_message=error_message,
        )
        return Emission(request_id, event, _facts(sequence))


def _facts(sequence: Sequence) -> ChoiceFacts:
    return ChoiceFacts(
        num_prompt_tokens=sequence.num_prompt_tokens,
        arrived_at=sequence.arrived_at,
        admitted_at=sequence.admitted_at,
        first_token_at=sequence.first_token_at,
        num_preemptions=sequence.num_preemptions,
    )
