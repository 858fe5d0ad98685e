"""What did a finished step change? Progress, new tokens, cached blocks, and who has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from pageloom.errors import EngineError
from pageloom.outputs import FinishReason, TokenLogprobs
from pageloom.plan import StepResult
from scheduler_svc.core.emission import NO_TOKENS, End, NewTokens, ScoredPrompt
from scheduler_svc.core.sequence import Binding
from scheduler_svc.core.slot_columns import Ints
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup

_NOTHING = np.zeros(0, np.int64)

Finish = Callable[[Binding, End], None]


class Drawn(NamedTuple):
    """What a result says was drawn, as columns."""

    slots: Ints
    token_ids: Ints

    @classmethod
    def of(cls, result: StepResult) -> Self:
        return cls(
            np.fromiter(result.slots, np.int64, len(result.slots)),
            np.fromiter(result.token_ids, np.int64, len(result.token_ids)),
        )


def check_result(group: WorkerGroup, step: Step, drawn: Drawn, result: StepResult) -> None:
    """Raises EngineError if a result does not answer its plan. Comes before any change."""
    if step is not group.in_flight[0]:
        raise EngineError(f"step {result.step} brought its result before step {group.in_flight[0].plan.step}")
    slots, token_ids = drawn
    due_slots = step.drawing_slots
    if result.failures:
        due_slots = np.setdiff1d(due_slots, list(result.failures))
        ran = {*step.decode_slots.tolist(), *step.chunk_slots.tolist()}
        if not result.failures.keys() <= ran:
            raise EngineError(f"step {result.step} brought failures of {sorted(result.failures)}; not all of them ran")
    # In the order of the plan, as our workers bring them, or in any other.
    if not np.array_equal(slots, due_slots) or len(token_ids) != len(slots):
        _check_slots(group, result, due_slots)
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < len(group.is_eos):
        raise EngineError(f"step {result.step} brought a token id outside the vocabulary of {len(group.is_eos)}")
    asked = slots[group.columns.wants_logprobs[slots] & group.columns.open[slots]]
    if len(asked) and not result.logprobs.keys() >= set(asked.tolist()):
        raise EngineError(f"step {result.step} brought no log-probabilities for some of {asked.tolist()}")
    if step.scored_tokens:
        _check_scores(group, step, result)
    if step.pooled_slots:
        _check_embeddings(group, step, result)


def _check_slots(group: WorkerGroup, result: StepResult, due_slots: Ints) -> None:
    # What ended, or failed, in an earlier step is due no more, but may come.
    needed = set(due_slots[group.columns.open[due_slots]].tolist())
    brought = set(result.slots)
    if not (needed <= brought <= set(due_slots.tolist())) or not len(brought) == len(result.slots) == len(
        result.token_ids
    ):
        raise EngineError(
            f"step {result.step} brought {len(result.token_ids)} tokens for slots {sorted(result.slots)}; "
            f"one was due for each of {sorted(needed)}"
        )


def _check_scores(group: WorkerGroup, step: Step, result: StepResult) -> None:
    for slot, due in _due_scores(group, step, result).items():
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


def _due_scores(group: WorkerGroup, step: Step, result: StepResult) -> dict[int, range]:
    """By slot, the prompt tokens whose log-probabilities somebody waits for."""
    return {
        slot: due
        for slot, due in step.scored_tokens.items()
        if slot not in result.failures and group.columns.open[slot]
    }


def _check_embeddings(group: WorkerGroup, step: Step, result: StepResult) -> None:
    for slot in _due_embeddings(group, step, result):
        num_bytes = len(result.embeddings.get(slot, b""))
        if num_bytes != group.embedding_bytes:
            raise EngineError(
                f"step {result.step} brought an embedding of {num_bytes} bytes for slot {slot}; "
                f"{group.embedding_bytes} were due"
            )


def _due_embeddings(group: WorkerGroup, step: Step, result: StepResult) -> list[int]:
    """The slots whose embeddings somebody waits for."""
    return [slot for slot in step.pooled_slots if slot not in result.failures and group.columns.open[slot]]


class StepCommit:
    """Makes the progress that one step reserved. `finish` is told of each choice that ends, once."""

    def __init__(self, group: WorkerGroup, step: Step, drawn: Drawn, result: StepResult, finish: Finish) -> None:
        self._group = group
        self._step = step
        self._drawn = drawn
        self._result = result
        self._finish = finish
        # Of each token taken.
        self.tenants = _NOTHING
        self._taken = Drawn(_NOTHING, _NOTHING)

    def advance(self) -> None:
        """Counts what has its KV now, and publishes the blocks that are full."""
        columns, step = self._group.columns, self._step
        decode_slots = self._succeeded(step.decode_slots)
        columns.num_computed[decode_slots] += 1
        columns.num_steps[decode_slots] += 1
        full = decode_slots[columns.num_computed[decode_slots] % self._group.tables.block_size == 0]
        for slot in full.tolist():
            self._publish(slot)
        for slot, num_tokens in zip(step.chunk_slots.tolist(), step.chunk_lens.tolist(), strict=True):
            if slot not in self._result.failures:
                columns.num_computed[slot] += num_tokens
                columns.num_steps[slot] += 1
                self._publish(slot)

    def take_prompt_logprobs(self) -> tuple[ScoredPrompt, ...]:
        """Hands on what was scored."""
        if not self._step.scored_tokens:
            return ()
        scored: list[ScoredPrompt] = []
        for slot, due in _due_scores(self._group, self._step, self._result).items():
            sequence = self._bound_at(slot).sequence
            sequence.num_scored_tokens = due.stop
            scored.append(ScoredPrompt(sequence.key, self._result.prompt_logprobs[slot]))
        return tuple(scored)

    def take_tokens(self, now: float) -> NewTokens:
        """Appends what was drawn."""
        columns = self._group.columns
        slots, token_ids = self._drawn
        wanted = columns.open[slots]
        # What is drawn for a choice that has ended meanwhile is nobody's.
        if not wanted.all():
            slots, token_ids = slots[wanted], token_ids[wanted]
        if not len(slots):
            return NO_TOKENS
        known = columns.num_known[slots]
        columns.tail[slots, known % columns.tail_width] = token_ids
        columns.num_known[slots] = known + 1
        tokens = NewTokens(
            keys=columns.key[slots],
            first_indexes=known - columns.num_prompt[slots],
            token_ids=token_ids,
            logprobs=self._logprobs(slots),
        )
        self.tenants = columns.tenant[slots]
        self._note_first_tokens(now)
        self._taken = Drawn(slots, token_ids)
        return tokens

    def fail(self) -> None:
        """Ends each choice whose run failed; the others of the step are not touched."""
        for slot, failure in self._result.failures.items():
            binding = self._bound_at(slot)
            binding.failed = True
            self._group.tables.distrust(binding)
            if not binding.sequence.finished:
                end = End(FinishReason.ERROR, error_message=failure.message, error_param=failure.param)
                self._finish(binding, end)

    def _succeeded(self, slots: Ints) -> Ints:
        failures = self._result.failures
        return slots[~np.isin(slots, list(failures))] if failures else slots

    def _publish(self, slot: int) -> None:
        group, binding = self._group, self._bound_at(slot)
        if binding.failed:
            return
        if group.columns.open[slot]:
            group.flush(binding)
        # Once it has ended, the steps in flight compute tokens that nobody knows.
        num_tokens = min(int(group.columns.num_computed[slot]), len(binding.sequence.token_ids))
        group.tables.publish(binding, num_tokens)

    def _logprobs(self, slots: Ints) -> dict[int, TokenLogprobs]:
        logprobs, columns = self._result.logprobs, self._group.columns
        if not logprobs:
            return {}
        asked = slots[columns.wants_logprobs[slots]].tolist()
        return {int(columns.key[slot]): logprobs[slot] for slot in asked}

    def _note_first_tokens(self, now: float) -> None:
        # Every stay in a slot begins with a chunk, so the first token of all comes from one.
        for slot in self._step.chunk_slots.tolist():
            binding = self._bound_at(slot)
            sequence = binding.sequence
            if sequence.first_token_at is None and self._group.columns.num_known[slot] > binding.num_known_at_start:
                sequence.first_token_at = sequence.history.first_token_at = now

    def end_finished(self) -> None:
        """Ends those whose token was their last."""
        columns, (slots, token_ids) = self._group.columns, self._taken
        may_end = columns.num_known[slots] >= columns.max_len[slots]
        may_end |= columns.ends_at_eos[slots] & self._group.is_eos[token_ids]
        may_end |= columns.has_stop_tokens[slots]
        for slot, token_id in zip(slots[may_end].tolist(), token_ids[may_end].tolist(), strict=True):
            binding = self._bound_at(slot)
            reason = binding.sequence.end_after(token_id, int(columns.num_known[slot]))
            if reason is not None:
                self._finish(binding, End(reason, stop_token_id=token_id if reason is FinishReason.STOP else None))

    def end_pooled(self) -> None:
        """Ends those whose embedding has come."""
        for slot in _due_embeddings(self._group, self._step, self._result):
            end = End(FinishReason.STOP, embedding=self._result.embeddings[slot])
            self._finish(self._bound_at(slot), end)

    def _bound_at(self, slot: int) -> Binding:
        binding = self._group.by_slot[slot]
        assert binding is not None, f"slot {slot} changed hands under a step in flight"
        return binding
