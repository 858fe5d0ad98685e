"""What would a worker make of a plan? Mirrors its slots, draws its tokens, and asks a roofline for the time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission, BatchPlan, StepResult
from pageloom.roofline import StepShape, StepTimer
from pageloom.simulated_tokens import SIMULATED_EOS_TOKEN_ID, choice_key, draw_tokens


class SimulatedDevice:
    """Runs plans in their order. It trusts them, where a worker checks them: this is the inner loop of a simulation.

    The output of the choice with seed i ends after `output_lens[i]` tokens.
    """

    def __init__(
        self, timer: StepTimer, output_lens: NDArray[np.int64], *, max_num_seqs: int, block_size: int, vocab_size: int
    ) -> None:
        self._timer = timer
        self._output_lens = output_lens
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._bound = np.zeros(max_num_seqs, np.bool_)
        self._drew = np.zeros(max_num_seqs, np.bool_)
        self._num_admitted_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_computed_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)
        self._keys = np.zeros(max_num_seqs, np.uint64)
        self._end_positions = np.zeros(max_num_seqs, np.int64)

    @property
    def num_unused_tokens(self) -> int:
        """Room in the blocks of bound slots that is for no token yet. A sequence's tokens count from its admission on,
        since their room is about to be filled; shared blocks are full, so they add nothing."""
        bound = self._bound
        room = self._num_blocks[bound].sum() * self._block_size
        tokens = np.maximum(self._num_admitted_tokens[bound], self._num_computed_tokens[bound])
        return int(room - tokens.sum())

    def run(self, plan: BatchPlan) -> tuple[StepResult, int]:
        """The plan's result, and how many sequences it made one token longer in their blocks."""
        self._apply(plan)
        decodes = self._decode_slots(plan)
        self._num_computed_tokens[decodes] += 1
        prefill_kv_tokens, prefill_pairs, drawing = self._run_chunks(plan)
        drawn = decodes if not drawing else np.concatenate((decodes, np.array(drawing, np.int64)))
        token_ids = self._draw(drawn)
        shape = StepShape(
            num_tokens=len(decodes) + sum(plan.chunk_lens),
            num_draws=len(drawn),
            decode_kv_tokens=int(self._num_computed_tokens[decodes].sum()),
            prefill_kv_tokens=prefill_kv_tokens,
            prefill_pairs=prefill_pairs,
        )
        result = StepResult(
            epoch=plan.epoch,
            step=plan.step,
            slots=tuple(drawn.tolist()),
            token_ids=tuple(token_ids.tolist()),
            duration_s=self._timer.step_time_s(shape),
        )
        return result, len(decodes)

    def _apply(self, plan: BatchPlan) -> None:
        if plan.snapshot:
            self._bound[:] = False
            self._drew[:] = False
        if plan.released_slots:
            released = list(plan.released_slots)
            self._bound[released] = False
            self._drew[released] = False
        for admission in plan.admissions:
            self._admit(admission)
        for slot, count in zip(plan.grown_slots, plan.grown_counts, strict=True):
            self._num_blocks[slot] += count

    def _admit(self, admission: Admission) -> None:
        slot, seed = admission.slot, admission.sampling.seed
        assert seed is not None
        self._bound[slot] = True
        self._num_tokens[slot] = self._num_admitted_tokens[slot] = len(admission.token_ids)
        self._num_computed_tokens[slot] = admission.num_computed_tokens
        self._num_blocks[slot] = len(admission.block_ids)
        self._keys[slot] = choice_key(seed, admission.choice_index)
        self._end_positions[slot] = admission.num_prompt_tokens + self._output_lens[seed] - 1

    def _decode_slots(self, plan: BatchPlan) -> NDArray[np.int64]:
        if not plan.chunk_slots and not plan.held_slots:
            return np.flatnonzero(self._drew)
        continues = self._drew.copy()
        continues[[*plan.chunk_slots, *plan.held_slots]] = False
        return np.flatnonzero(continues)

    def _run_chunks(self, plan: BatchPlan) -> tuple[int, int, list[int]]:
        """KV tokens read, pairs of query and key, and the slots that draw."""
        num_kv_tokens = num_pairs = 0
        drawing: list[int] = []
        for slot, length in zip(plan.chunk_slots, plan.chunk_lens, strict=True):
            start = int(self._num_computed_tokens[slot])
            end = start + length
            self._num_computed_tokens[slot] = end
            num_kv_tokens += end
            num_pairs += length * start + length * (length + 1) // 2
            draws = end == self._num_tokens[slot]
            self._drew[slot] = draws
            if draws:
                drawing.append(slot)
        return num_kv_tokens, num_pairs, drawing

    def _draw(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        positions = self._num_tokens[slots]
        token_ids = draw_tokens(self._keys[slots], positions, self._vocab_size)
        token_ids[positions == self._end_positions[slots]] = SIMULATED_EOS_TOKEN_ID
        self._num_tokens[slots] = positions + 1
        return token_ids
