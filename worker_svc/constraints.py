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
from worker_svc.draw_rows import DrawRows
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

    def after(self, token_id: int) -> Constraint:
        """That of an output which goes on with a token, while this one waits for what is drawn."""
        other = Constraint(
            match=None if self.match is None else self.match.copy(),
            bad_words=None if self.bad_words is None else self.bad_words.copy(),
            fixed=self.fixed,
        )
        other.take(token_id)
        return other

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

    def num_possible_drafts(self, slot: int, token_ids: NDArray[np.int64]) -> int:
        """How many of the first drafts of a slot its grammar lets follow each other."""
        constraint = self._constraints[slot]
        if constraint is None or constraint.match is None:
            return len(token_ids)
        return constraint.match.num_possible(token_ids.tolist())

    def apply(self, logits: Tensor, draws: DrawRows) -> dict[int, Failure]:
        """Makes the logits [rows, vocab] of what may not come next -inf; drafts before a row count as if they had been
        drawn. The tokens that min_tokens keeps back are among it, for constrained slots. Returns the slots that cannot
        go on after their last known token, and why."""
        slots = draws.row_slots
        rows = np.flatnonzero(self._constrained[slots])
        if rows.size == 0:
            return {}
        ranks = draws.draft_ranks()[rows]
        constraints = self._along_drafts(slots[rows], ranks, draws.drafts_before(rows)[1])
        bits, problems = self._allowed(slots[rows], constraints, draws.num_output_tokens[rows])
        # Looked up by the byte and added: on a CPU, filling by a mask of booleans costs eight times as much.
        packed = torch.from_numpy(bits.view(np.uint8)).to(self._device, non_blocking=True)
        additions = functional.embedding(packed.int(), self._additions).view(len(rows), -1)[:, : self._vocab_size]
        for row, addition in zip(rows.tolist(), additions, strict=True):
            logits[row].add_(addition)
        return {int(slots[rows[at]]): problem for at, problem in problems.items() if ranks[at] == 0}

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

    def _along_drafts(
        self, slots: NDArray[np.int64], ranks: NDArray[np.int64], token_ids: NDArray[np.int64]
    ) -> list[Constraint]:
        """That of each row, after its drafts: those before the next row of the slot are one more, at the end."""
        ends = np.cumsum(ranks).tolist()
        constraints: list[Constraint] = []
        for slot, rank, end in zip(slots.tolist(), ranks.tolist(), ends, strict=True):
            constraints.append(constraints[-1].after(int(token_ids[end - 1])) if rank else self._at(slot))
        return constraints

    def _allowed(
        self, slots: NDArray[np.int64], constraints: list[Constraint], num_output_tokens: NDArray[np.int64]
    ) -> tuple[Bits, dict[int, Failure]]:
        """What each row may draw, [rows, vocab / 32]: nothing, where a message says why, by row."""
        bits = np.repeat(self._every_token[None], len(slots), axis=0)
        problems = self._follow_grammars(constraints, bits)
        for row, (slot, constraint) in enumerate(zip(slots.tolist(), constraints, strict=True)):
            if row not in problems:
                self._narrow(bits[row], slot, constraint, int(num_output_tokens[row]))
                if not bits[row].any():
                    problems[row] = Failure(_NOTHING_LEFT, constraint.param)
        return bits, problems

    def _follow_grammars(self, constraints: list[Constraint], bits: Bits) -> dict[int, Failure]:
        """Overwrites the rows of `bits` [rows, vocab / 32] that have a grammar. Returns those that cannot go on."""
        matches = [(one.match, row) for row, one in enumerate(constraints) if one.match is not None]
        if not matches:
            return {}
        assert self._grammars is not None
        self._grammars.fill(matches, bits)
        problems: dict[int, Failure] = {}
        for match, row in matches:
            if problem := self._grammars.problem(match):
                bits[row] = 0
                problems[row] = Failure(problem, _GRAMMAR)
        return problems

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
