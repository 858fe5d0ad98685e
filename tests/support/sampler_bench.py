"""A sampler without a model: slots are bound and logits handed in by a test, which sees what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pageloom.plan import Admission
from pageloom.sampling_params import SamplingParams
from tests.support.naive_sampler import naive_draw, naive_logits
from worker_svc.draw_rows import DrawRows
from worker_svc.grammar import Grammars
from worker_svc.sampler import Draws, Sampler

VOCAB_SIZE = 300
EOS = (7, 9)


def plain_rows(
    slots: Sequence[int] | NDArray[np.int64], positions: NDArray[np.int64], num_output_tokens: NDArray[np.int64]
) -> DrawRows:
    """A row for each slot, without drafts."""
    row_slots = np.array(slots, np.int64)
    return DrawRows(
        slots=row_slots,
        num_drafts=np.zeros_like(row_slots),
        draft_token_ids=np.zeros(0, np.int64),
        row_slots=row_slots,
        positions=positions,
        num_output_tokens=num_output_tokens,
    )


class Bench:
    """A sampler, and the tokens that its slots have."""

    def __init__(
        self,
        vocab_size: int = VOCAB_SIZE,
        max_num_seqs: int = 32,
        eos_token_ids: tuple[int, ...] = EOS,
        grammars: Grammars | None = None,
    ) -> None:
        self.sampler = Sampler(
            max_num_seqs=max_num_seqs,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            device=torch.device("cpu"),
            grammars=grammars,
        )
        self.admissions: dict[int, Admission] = {}
        self.outputs: dict[int, list[int]] = {}

    def bind(
        self,
        slot: int,
        sampling: SamplingParams,
        prompt: Sequence[int] = (1, 2, 3),
        output: Sequence[int] = (),
        choice_index: int = 0,
    ) -> None:
        admission = Admission(
            slot=slot,
            token_ids=(*prompt, *output),
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            block_ids=(),
            sampling=sampling,
            choice_index=choice_index,
        )
        self.admissions[slot] = admission
        self.outputs[slot] = list(output)
        self.sampler.bind(admission)

    def sample(self, logits: torch.Tensor, slots: list[int]) -> Draws:
        outputs = np.array([len(self.outputs[slot]) for slot in slots])
        prompts = np.array([self.admissions[slot].num_prompt_tokens for slot in slots])
        draws = self.sampler.sample(logits.clone(), plain_rows(slots, prompts + outputs, outputs))
        for slot, token in zip(draws.slots.tolist(), draws.token_ids.tolist(), strict=True):
            self.outputs[slot].append(token)
        return draws

    def expected(self, logits: torch.Tensor, slot: int) -> int:
        admission = self.admissions[slot]
        prompt, output = admission.token_ids[: admission.num_prompt_tokens], self.outputs[slot]
        edited = naive_logits(logits.tolist(), admission.sampling, prompt, output, EOS)
        return naive_draw(edited, admission.sampling, admission.choice_index, len(prompt) + len(output))


def tokens_by_slot(draws: Draws) -> dict[int, int]:
    return dict(zip(draws.slots.tolist(), draws.token_ids.tolist(), strict=True))
