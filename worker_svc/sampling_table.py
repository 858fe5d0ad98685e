"""How does each slot want its tokens drawn? SamplingParams as columns over the slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission
from pageloom.sampling_params import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKEN_IDS, SamplingParams

NO_LOGPROBS = -1


class SamplingTable:
    """Written when a slot is bound, read by the sampler; all columns are [max_num_seqs] unless noted."""

    def __init__(self, *, max_num_seqs: int, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        # Greedy slots have temperature 0, whichever parameter made them greedy.
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        # 0 keeps all.
        self.top_k = np.zeros(max_num_seqs, np.int64)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, np.float32)
        self.repetition_penalty = np.ones(max_num_seqs, np.float32)
        self.min_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        self.seeds = np.zeros(max_num_seqs, np.uint64)
        self.choice_indexes = np.zeros(max_num_seqs, np.int64)
        # The two lists of a slot fill the front of its row. The rest of a bias row adds 0 to token 0;
        # the rest of a stop row repeats its first id.
        self.num_biased = np.zeros(max_num_seqs, np.int64)
        self.biased_token_ids = np.zeros((max_num_seqs, MAX_LOGIT_BIAS_ENTRIES), np.int64)
        self.biases = np.zeros((max_num_seqs, MAX_LOGIT_BIAS_ENTRIES), np.float32)
        self.num_ending = np.zeros(max_num_seqs, np.int64)
        self.ending_token_ids = np.zeros((max_num_seqs, MAX_STOP_TOKEN_IDS + len(eos_token_ids)), np.int64)

    def bind(self, admission: Admission) -> None:
        """Takes over the parameters of a newly bound slot."""
        slot, sampling = admission.slot, admission.sampling
        self.temperature[slot] = 0.0 if sampling.greedy else sampling.temperature
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = min(max(sampling.top_k, 0), self._vocab_size)
        self.min_p[slot] = sampling.min_p
        self.presence_penalty[slot] = sampling.presence_penalty
        self.frequency_penalty[slot] = sampling.frequency_penalty
        self.repetition_penalty[slot] = sampling.repetition_penalty
        self.min_tokens[slot] = sampling.min_tokens
        self.num_logprobs[slot] = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        self.seeds[slot] = sampling.seed or 0
        self.choice_indexes[slot] = admission.choice_index
        self._bind_lists(slot, sampling)

    def penalised(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `slots` have a penalty that changes logits."""
        added = (self.presence_penalty[slots] != 0) | (self.frequency_penalty[slots] != 0)
        penalised: NDArray[np.bool_] = added | (self.repetition_penalty[slots] != 1)
        return penalised

    def _bind_lists(self, slot: int, sampling: SamplingParams) -> None:
        # Ids outside the vocabulary are refused at the scheduler's door; here they would only be
        # able to spoil the other rows of a step, so they are left out.
        bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < self._vocab_size}
        self.num_biased[slot] = len(bias)
        self.biased_token_ids[slot] = 0
        self.biases[slot] = 0.0
        self.biased_token_ids[slot, : len(bias)] = list(bias)
        self.biases[slot, : len(bias)] = list(bias.values())
        ending = [*self._eos_token_ids, *(token for token in sampling.stop_token_ids if 0 <= token < self._vocab_size)]
        self.num_ending[slot] = len(ending)
        self.ending_token_ids[slot] = ending[0] if ending else 0
        self.ending_token_ids[slot, : len(ending)] = ending
