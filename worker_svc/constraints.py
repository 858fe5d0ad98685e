"""Which tokens may a slot draw next? What its grammar, its allowed tokens and its bad words leave, as one mask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pageloom.errors import InvalidRequest
from pageloom.plan import Admission, Failure
from pageloom.sampling_params import SamplingParams
from worker_svc.bad_words import BadWords
from worker_svc.grammar import NO_GRAMMARS, Grammars, Match
from worker_svc.sampling_table import SamplingTable

# Bit i of element j is token 32 j + i.
Bits = NDArray[np.int32]

_NOTHING_LEFT = "no token is left that grammar, allowed_token_ids, bad_words and min_tokens together permit"
_GRAMMAR = "grammar"


@dataclass(slots=True, kw_only=True)
class Constraint:
    """What limits one slot. `fixed` are the tokens that it may ever draw, if not all."""

    match: Match | None
    bad_words: BadWords | None
    fixed: Bits | None  # [vocab / 32]

    @property
    def param(self) -> str:
        """The field to name when it leaves nothing."""
        return _GRAMMAR if self.match is not None else "allowed_token_ids"

    def take(self, token_id: int) -> None:
        if self.match is not None:
            self.match.take(token_id)
        if self.bad_words is not None:
            self.bad_words.take(token_id)


class Constraints:
    """The constraints of all slots. A step costs nothing where there are none."""

    def __init__(
        self,
        table: SamplingTable,
        grammars: Grammars | None,
        *,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._table = table
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._device = device
        self._constraints: list[Constraint | None] = [None] * max_num_seqs
        self._constrained = np.zeros(max_num_seqs, np.bool_)
        self._every_token = _bits(range(vocab_size), vocab_size)
        # What is added to the logits of the 8 tokens of a byte of a mask.
        flags = torch.arange(256)[:, None] >> torch.arange(8) & 1
        self._additions = torch.where(flags.bool(), 0.0, -torch.inf).to(device)  # [256, 8]

    def bind(self, admission: Admission) -> None:
        """Takes over the constraint and the output of a newly bound slot. Raises InvalidRequest if its grammar cannot
        be used; the slot is then unconstrained and must not run."""
        slot, sampling = admission.slot, admission.sampling
        self.release((slot,))
        if not (sampling.grammar or sampling.allowed_token_ids or sampling.bad_words):
            return
        output_token_ids = admission.token_ids[admission.num_prompt_tokens :]
        longer = [token_ids for token_ids in sampling.bad_words if len(token_ids) > 1]
        self._constraints[slot] = Constraint(
            match=self._match(sampling.grammar, output_token_ids) if sampling.grammar else None,
            bad_words=BadWords(longer, output_token_ids) if longer else None,
            fixed=self._fixed(sampling),
        )
        self._constrained[slot] = True

    def release(self, slots: Iterable[int]) -> None:
        """Lets go of what slots had, whether or not they had anything."""
        for slot in slots:
            self._constraints[slot] = None
            self._constrained[slot] = False

    def constrained(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `slots` may not draw every token."""
        constrained: NDArray[np.bool_] = self._constrained[slots]
        return constrained

    def apply(
        self, logits: Tensor, slots: NDArray[np.int64], num_output_tokens: NDArray[np.int64]
    ) -> dict[int, Failure]:
        """Makes the logits [rows, vocab] of what may not come next -inf; row i belongs to slots[i]. The tokens that
        min_tokens keeps back are among it, for constrained slots. Returns those for which nothing is left, and why."""
        rows = np.flatnonzero(self._constrained[slots])
        if rows.size == 0:
            return {}
        bits, failures = self._allowed(slots[rows], num_output_tokens[rows])
        # Looked up by the byte and added: on a CPU, filling by a mask of booleans costs eight times as much.
        packed = torch.from_numpy(bits.view(np.uint8)).to(self._device, non_blocking=True)
        additions = functional.embedding(packed.int(), self._additions).view(len(rows), -1)[:, : self._vocab_size]
        for row, addition in zip(rows.tolist(), additions, strict=True):
            logits[row].add_(addition)
        return failures

    def record(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Takes over the tokens that `slots` drew."""
        kept = np.flatnonzero(self._constrained[slots])
        for slot, token_id in zip(slots[kept].tolist(), token_ids[kept].tolist(), strict=True):
            self._at(slot).take(token_id)

    def _match(self, grammar: str, output_token_ids: tuple[int, ...]) -> Match:
        if self._grammars is None:
            raise InvalidRequest(NO_GRAMMARS, param=_GRAMMAR)
        return self._grammars.match(grammar, output_token_ids)

    def _fixed(self, sampling: SamplingParams) -> Bits | None:
        """Without what bad words of one token take away."""
        single = [token_ids[0] for token_ids in sampling.bad_words if len(token_ids) == 1]
        if not sampling.allowed_token_ids and not single:
            return None
        allowed = sampling.allowed_token_ids
        fixed = _bits(allowed, self._vocab_size) if allowed else self._every_token
        return fixed & ~_bits(single, self._vocab_size)

    def _allowed(
        self, slots: NDArray[np.int64], num_output_tokens: NDArray[np.int64]
    ) -> tuple[Bits, dict[int, Failure]]:
        """What each of `slots` may draw, [rows, vocab / 32]: nothing, where a failure says why."""
        bits = np.repeat(self._every_token[None], len(slots), axis=0)
        constraints = [self._at(slot) for slot in slots.tolist()]
        failures = self._follow_grammars(constraints, slots, bits)
        for row, (slot, constraint) in enumerate(zip(slots.tolist(), constraints, strict=True)):
            if slot not in failures:
                self._narrow(bits[row], slot, constraint, int(num_output_tokens[row]))
                if not bits[row].any():
                    failures[slot] = Failure(_NOTHING_LEFT, constraint.param)
        return bits, failures

    def _follow_grammars(
        self, constraints: list[Constraint], slots: NDArray[np.int64], bits: Bits
    ) -> dict[int, Failure]:
        """Overwrites the rows of `bits` [rows, vocab / 32] that have a grammar. Returns the slots that cannot go on."""
        matches = [(one.match, row) for row, one in enumerate(constraints) if one.match is not None]
        if not matches:
            return {}
        assert self._grammars is not None
        self._grammars.fill(matches, bits)
        failures: dict[int, Failure] = {}
        for match, row in matches:
            if problem := self._grammars.problem(match):
                bits[row] = 0
                failures[int(slots[row])] = Failure(problem, _GRAMMAR)
        return failures

    def _narrow(self, bits: Bits, slot: int, constraint: Constraint, num_output_tokens: int) -> None:
        if constraint.fixed is not None:
            bits &= constraint.fixed
        if constraint.bad_words is not None:
            bits &= ~_bits(constraint.bad_words.completing(), self._vocab_size)
        if num_output_tokens < self._table.min_tokens[slot]:
            ending = self._table.ending_token_ids[slot, : self._table.num_ending[slot]]
            goes_on = bits & ~_bits(ending, self._vocab_size)
            # The end of a grammar is the end, however few tokens it took.
            if constraint.match is None or goes_on.any():
                bits[:] = goes_on

    def _at(self, slot: int) -> Constraint:
        constraint = self._constraints[slot]
        assert constraint is not None
        return constraint


def _bits(token_ids: Iterable[int], vocab_size: int) -> Bits:
    """The mask [vocab / 32] of a set of tokens. Ids outside the vocabulary, which the scheduler refuses at its door,
    are left out: here they could only spoil the step."""
    ids = np.fromiter(token_ids, np.int64)
    flags = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    flags[ids[(ids >= 0) & (ids < vocab_size)]] = True
    return np.packbits(flags, bitorder="little").view(np.int32)
