"""What did a finished step change? Progress, new tokens, cached blocks, and who has ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pageloom.outputs import FinishReason, TokenLogprobs
from pageloom.plan import StepResult
from scheduler_svc.core.checking import Drawn, due_embeddings, due_scores
from scheduler_svc.core.emission import NO_TOKENS, End, NewTokens, ScoredPrompt
from scheduler_svc.core.sequence import Binding
from scheduler_svc.core.slot_columns import Ints
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup

_NOTHING = np.zeros(0, np.int64)

Finish = Callable[[Binding, End], None]


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
        self._ends: dict[int, End] = {}
        # Whose run filled blocks.
        self._full_slots: list[int] = []

    def advance(self) -> None:
        """Counts what has its KV now."""
        columns, step = self._group.columns, self._step
        decode_slots = self._succeeded(step.decode_slots)
        block_size = self._group.tables.block_size
        columns.num_steps[decode_slots] += 1
        if step.draft_limits is None:
            columns.num_computed[decode_slots] += 1
            self._full_slots = decode_slots[columns.num_computed[decode_slots] % block_size == 0].tolist()
        else:
            num_full_blocks = columns.num_computed[decode_slots] // block_size
            self._advance_with_drafts(step.decode_slots, step.draft_limits)
            grown = columns.num_computed[decode_slots] // block_size > num_full_blocks
            self._full_slots = decode_slots[grown].tolist()
        for slot, num_tokens in zip(step.chunk_slots.tolist(), step.chunk_lens.tolist(), strict=True):
            if slot not in self._result.failures:
                columns.num_computed[slot] += num_tokens
                columns.num_steps[slot] += 1
                self._full_slots.append(slot)

    def _advance_with_drafts(self, slots: Ints, limits: Ints) -> None:
        """How many drafts of `slots` were right is known now. One that drew nothing has failed, or had ended."""
        columns = self._group.columns
        counts = self._drawn.counts_by_slot(self._group.num_slots)[slots]
        columns.num_computed[slots] += counts
        columns.num_planned[slots] += counts - 1
        columns.num_drawn[slots] += counts - 1
        columns.num_drafts_ahead[slots] -= limits
        if self._result.draft_limit is not None:
            self._group.draft_limit = min(self._result.draft_limit, self._group.max_num_draft_tokens)

    def take_prompt_logprobs(self) -> tuple[ScoredPrompt, ...]:
        """Hands on what was scored."""
        if not self._step.scored_tokens:
            return ()
        scored: list[ScoredPrompt] = []
        for slot, due in due_scores(self._group, self._step, self._result).items():
            sequence = self._bound_at(slot).sequence
            sequence.num_scored_tokens = due.stop
            scored.append(ScoredPrompt(sequence.key, self._result.prompt_logprobs[slot]))
        return tuple(scored)

    def take_tokens(self, now: float) -> NewTokens:
        """Appends what was drawn, up to where a choice ends."""
        columns = self._group.columns
        slots, within = self._drawn.rows()
        indexes, token_ids = columns.num_known[slots], self._drawn.token_ids
        if within is not None:
            indexes += within
        # What is drawn for a choice that has ended meanwhile is nobody's.
        wanted = columns.open[slots]
        if not wanted.all():
            slots, indexes, token_ids = slots[wanted], indexes[wanted], token_ids[wanted]
        if not len(slots):
            return NO_TOKENS
        last_indexes = self._find_ends(slots, indexes, token_ids)
        if within is not None and last_indexes:
            wanted = np.ones(len(slots), np.bool_)
            for slot, last_index in last_indexes.items():
                wanted &= (slots != slot) | (indexes <= last_index)
            slots, indexes, token_ids = slots[wanted], indexes[wanted], token_ids[wanted]
        logprobs = self._logprobs(slots, indexes)
        columns.tail[slots, indexes % columns.tail_width] = token_ids
        # Of a slot's rows the last stays.
        columns.num_known[slots] = indexes + 1
        self.tenants = columns.tenant[slots]
        self._note_first_tokens(now)
        return NewTokens(
            keys=columns.key[slots],
            indexes=indexes - columns.num_prompt[slots],
            token_ids=token_ids,
            logprobs=logprobs,
        )

    def publish(self) -> None:
        """Offers the blocks that were filled to the prefix cache."""
        for slot in self._full_slots:
            self._publish(slot)

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

    def _find_ends(self, slots: Ints, indexes: Ints, token_ids: Ints) -> dict[int, int]:
        """The choices that end with one of these tokens, and the index of that, by slot."""
        columns = self._group.columns
        may_end = indexes + 1 >= columns.max_len[slots]
        may_end |= columns.ends_at_eos[slots] & self._group.is_eos[token_ids]
        may_end |= columns.has_stop_tokens[slots]
        rows = np.flatnonzero(may_end)
        last_indexes: dict[int, int] = {}
        if not len(rows):
            return last_indexes
        for slot, index, token_id in zip(
            slots[rows].tolist(), indexes[rows].tolist(), token_ids[rows].tolist(), strict=True
        ):
            if slot in last_indexes:
                continue
            reason = self._bound_at(slot).sequence.end_after(token_id, index + 1)
            if reason is not None:
                last_indexes[slot] = index
                self._ends[slot] = End(reason, stop_token_id=token_id if reason is FinishReason.STOP else None)
        return last_indexes

    def _logprobs(self, slots: Ints, indexes: Ints) -> list[TokenLogprobs | None]:
        """Before the tokens are counted as known."""
        logprobs = self._result.logprobs
        if not logprobs:
            return []
        columns = self._group.columns
        asked, within = columns.wants_logprobs[slots].tolist(), (indexes - columns.num_known[slots]).tolist()
        rows = zip(slots.tolist(), within, asked, strict=True)
        return [logprobs[slot][at] if is_asked else None for slot, at, is_asked in rows]

    def _note_first_tokens(self, now: float) -> None:
        # Every stay in a slot begins with a chunk, so the first token of all comes from one.
        for slot in self._step.chunk_slots.tolist():
            binding = self._bound_at(slot)
            sequence = binding.sequence
            if sequence.first_token_at is None and self._group.columns.num_known[slot] > binding.num_known_at_start:
                sequence.first_token_at = sequence.history.first_token_at = now

    def end_finished(self) -> None:
        """Ends those whose token was their last."""
        for slot, end in self._ends.items():
            self._finish(self._bound_at(slot), end)

    def end_pooled(self) -> None:
        """Ends those whose embedding has come."""
        for slot in due_embeddings(self._group, self._step, self._result):
            end = End(FinishReason.STOP, embedding=self._result.embeddings[slot])
            self._finish(self._bound_at(slot), end)

    def _bound_at(self, slot: int) -> Binding:
        binding = self._group.by_slot[slot]
        assert binding is not None, f"slot {slot} changed hands under a step in flight"
        return binding
