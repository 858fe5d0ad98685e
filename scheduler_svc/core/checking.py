"""Does a result answer its plan? A worker whose result does not is broken, and nothing of it is taken."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from pageloom.errors import EngineError
from pageloom.plan import StepResult
from scheduler_svc.core.slot_columns import Bools, Ints
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup


class Drawn(NamedTuple):
    """What a result says was drawn, as columns: the next `counts[i]` of the tokens by `slots[i]`, one each if there are
    no counts."""

    slots: Ints  # [slots]
    token_ids: Ints  # [tokens]
    counts: Ints | None  # [slots]

    @classmethod
    def of(cls, result: StepResult) -> Self:
        counts = result.token_counts
        return cls(
            np.fromiter(result.slots, np.int64, len(result.slots)),
            np.fromiter(result.token_ids, np.int64, len(result.token_ids)),
            np.fromiter(counts, np.int64, len(counts)) if counts else None,
        )

    def rows(self) -> tuple[Ints, Ints | None]:
        """Of each token its slot, and how many of the slot's come before it; both [tokens]. None: none do."""
        if self.counts is None:
            return self.slots, None
        starts = np.cumsum(self.counts) - self.counts
        return np.repeat(self.slots, self.counts), np.arange(len(self.token_ids)) - np.repeat(starts, self.counts)

    def counts_by_slot(self, num_slots: int) -> Ints:
        """How many tokens each slot drew, [num_slots]."""
        counts = np.zeros(num_slots, np.int64)
        counts[self.slots] = 1 if self.counts is None else self.counts
        return counts


def check_result(group: WorkerGroup, step: Step, drawn: Drawn, result: StepResult) -> None:
    """Raises EngineError if a result does not answer its plan. Comes before any change."""
    if step is not group.in_flight[0]:
        raise EngineError(f"step {result.step} brought its result before step {group.in_flight[0].plan.step}")
    slots, token_ids, counts = drawn
    due_slots = step.drawing_slots
    if result.failures:
        due_slots = np.setdiff1d(due_slots, list(result.failures))
        ran = {*step.decode_slots.tolist(), *step.chunk_slots.tolist()}
        if not result.failures.keys() <= ran:
            raise EngineError(f"step {result.step} brought failures of {sorted(result.failures)}; not all of them ran")
    # In the order of the plan, as our workers bring them, or in any other.
    if not np.array_equal(slots, due_slots):
        _check_slots(group, result, due_slots)
    if counts is None and len(token_ids) != len(slots):
        raise EngineError(f"step {result.step} brought {len(token_ids)} tokens for {len(slots)} slots, and no counts")
    if counts is not None or result.draft_counts:
        _check_counts(group, step, drawn, result)
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < len(group.is_eos):
        raise EngineError(f"step {result.step} brought a token id outside the vocabulary of {len(group.is_eos)}")
    asked = group.columns.wants_logprobs[slots] & group.columns.open[slots]
    if asked.any():
        _check_logprobs(drawn, asked, result)
    if step.scored_tokens:
        _check_scores(group, step, result)
    if step.pooled_slots:
        _check_embeddings(group, step, result)


def due_scores(group: WorkerGroup, step: Step, result: StepResult) -> dict[int, range]:
    """By slot, the prompt tokens whose log-probabilities somebody waits for."""
    return {
        slot: due
        for slot, due in step.scored_tokens.items()
        if slot not in result.failures and group.columns.open[slot]
    }


def due_embeddings(group: WorkerGroup, step: Step, result: StepResult) -> list[int]:
    """The slots whose embeddings somebody waits for."""
    return [slot for slot in step.pooled_slots if slot not in result.failures and group.columns.open[slot]]


def _check_slots(group: WorkerGroup, result: StepResult, due_slots: Ints) -> None:
    # What ended, or failed, in an earlier step is due no more, but may come.
    needed = set(due_slots[group.columns.open[due_slots]].tolist())
    brought = set(result.slots)
    if not (needed <= brought <= set(due_slots.tolist())) or len(brought) != len(result.slots):
        raise EngineError(
            f"step {result.step} brought {len(result.token_ids)} tokens for slots {sorted(result.slots)}; "
            f"some were due for each of {sorted(needed)}"
        )


def _check_counts(group: WorkerGroup, step: Step, drawn: Drawn, result: StepResult) -> None:
    """Each slot drew one token and those of its drafts that were right, no more than were allowed."""
    slots, token_ids, counts = drawn
    columns, num_drafts = group.columns, np.array(result.draft_counts or (0,) * len(slots), np.int64)
    if counts is None:
        counts = np.ones(len(slots), np.int64)
    if not len(counts) == len(num_drafts) == len(slots) or counts.sum() != len(token_ids):
        raise EngineError(f"step {result.step} brought counts that do not fit its {len(slots)} slots")
    limits = np.zeros(group.num_slots, np.int64)
    if step.draft_limits is not None:
        limits[step.decode_slots] = step.draft_limits
    wrong = (counts < 1) | (counts > 1 + num_drafts) | (num_drafts > limits[slots])
    wrong |= columns.open[slots] & (columns.num_known[slots] + counts > columns.max_len[slots])
    if wrong.any():
        raise EngineError(
            f"step {result.step} brought more or fewer tokens than could be drawn by slots {slots[wrong].tolist()}"
        )


def _check_logprobs(drawn: Drawn, asked: Bools, result: StepResult) -> None:
    counts = np.ones_like(drawn.slots) if drawn.counts is None else drawn.counts
    for slot, count in zip(drawn.slots[asked].tolist(), counts[asked].tolist(), strict=True):
        if len(result.logprobs.get(slot, ())) != count:
            raise EngineError(f"step {result.step} brought no log-probabilities for some tokens of slot {slot}")


def _check_scores(group: WorkerGroup, step: Step, result: StepResult) -> None:
    for slot, due in due_scores(group, step, result).items():
        scores = result.prompt_logprobs.get(slot)
        binding = group.by_slot[slot]
        assert binding is not None
        num_top = min(binding.sequence.request.sampling.prompt_logprobs or 0, len(group.is_eos))
        if scores is None or scores.first_index != due.start or len(scores.logprobs) != len(due):
            raise EngineError(
                f"step {result.step} brought other log-probabilities than those of prompt tokens {due.start} to "
                f"{due.stop - 1} of slot {slot}"
            )
        if len(scores.top_token_ids) != num_top * len(due):
            raise EngineError(f"step {result.step} brought other than {num_top} likeliest tokens each for slot {slot}")


def _check_embeddings(group: WorkerGroup, step: Step, result: StepResult) -> None:
    for slot in due_embeddings(group, step, result):
        num_bytes = len(result.embeddings.get(slot, b""))
        if num_bytes != group.embedding_bytes:
            raise EngineError(
                f"step {result.step} brought an embedding of {num_bytes} bytes for slot {slot}; "
                f"{group.embedding_bytes} were due"
            )
