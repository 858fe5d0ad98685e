"""Which token does each row draw? Logits and the slots' parameters in, token ids and log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom.outputs import TokenLogprobs
from pageloom.plan import Admission, Failure
from worker_svc.constraints import Constraints
from worker_svc.counter_random import uniforms
from worker_svc.draw import Truncation, draw, truncate
from worker_svc.draw_rows import FAILED, DrawRows, count_drawn
from worker_svc.grammar import Grammars
from worker_svc.penalties import PenaltyState
from worker_svc.sampling_table import NO_LOGPROBS, SamplingTable

NOT_FINITE = Failure("the model's logits are not finite numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What the slots of one step drew, those of one slot in order. One that failed is in `failures` only."""

    slots: NDArray[np.int64]  # [drawn]
    counts: NDArray[np.int64]  # [drawn]: tokens of each slot, at least 1
    num_drafts: NDArray[np.int64]  # [drawn]: drafts that each slot ran
    token_ids: NDArray[np.int64]  # [sum of counts]
    failures: dict[int, Failure]  # by slot
    logprobs: dict[int, tuple[TokenLogprobs, ...]]  # by slot, for those that asked, one for each token

    def without(self, slots: tuple[int, ...]) -> Draws:
        """Those of the other slots. The draws of `slots`, which failed otherwise, are nobody's."""
        if not slots:
            return self
        kept = ~np.isin(self.slots, slots)
        return Draws(
            slots=self.slots[kept],
            counts=self.counts[kept],
            num_drafts=self.num_drafts[kept],
            token_ids=self.token_ids[np.repeat(kept, self.counts)],
            failures={slot: failure for slot, failure in self.failures.items() if slot not in slots},
            logprobs={slot: logprobs for slot, logprobs in self.logprobs.items() if slot not in slots},
        )


_NO_ROWS = np.zeros(0, np.int64)
NO_DRAWS = Draws(slots=_NO_ROWS, counts=_NO_ROWS, num_drafts=_NO_ROWS, token_ids=_NO_ROWS, failures={}, logprobs={})


def most_likely_draws(rows: DrawRows, token_ids: Tensor) -> Draws:
    """The draws of rows that take `Model.most_likely`."""
    drawn_ids = token_ids.cpu().numpy()
    counts = count_drawn(rows, drawn_ids)
    return _draws(rows, drawn_ids[_counted(rows, counts)], counts, {}, {})


def _counted(rows: DrawRows, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows whose tokens count, in order."""
    if not len(rows.draft_token_ids):
        return np.flatnonzero(counts)
    return np.flatnonzero(rows.draft_ranks() < np.repeat(counts, rows.num_drafts + 1))


def _draws(
    rows: DrawRows,
    token_ids: NDArray[np.int64],
    counts: NDArray[np.int64],
    logprobs: dict[int, tuple[TokenLogprobs, ...]],
    known_failures: dict[int, Failure],
) -> Draws:
    drawn = counts > 0
    return Draws(
        slots=rows.slots[drawn],
        counts=counts[drawn],
        num_drafts=rows.num_drafts[drawn],
        token_ids=token_ids,
        failures=dict.fromkeys(rows.slots[~drawn].tolist(), NOT_FINITE) | known_failures,
        logprobs=logprobs,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RawLogprobs:
    """Log-softmax of the untouched logits, for the rows that report it."""

    rows: NDArray[np.int64]
    values: Tensor  # [reporting, vocab] float32


class Sampler:
    """The sampler's state for all slots. A step's order is: raw log-probabilities; logit bias; the masks of
    constraints and of min_tokens; penalties; temperature; min_p, top_k, top_p; draw."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
        grammars: Grammars | None = None,
    ) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._table = SamplingTable(max_num_seqs=max_num_seqs, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
        self._penalties = PenaltyState(self._table, max_num_seqs=max_num_seqs, vocab_size=vocab_size, device=device)
        self._constraints = Constraints(
            self._table, grammars, max_num_seqs=max_num_seqs, vocab_size=vocab_size, device=device
        )

    def bind(self, admission: Admission) -> None:
        """Takes over the parameters and the tokens of a newly bound slot. Raises InvalidRequest if its grammar cannot
        be used: the slot must not run."""
        self._table.bind(admission)
        self._penalties.bind(admission)
        self._constraints.bind(admission)

    def release(self, slots: tuple[int, ...]) -> None:
        """Lets go of what takes memory for these slots; whoever is bound next would take it over anyway."""
        self._constraints.release(slots)

    def constrains(self, slots: NDArray[np.int64]) -> bool:
        """Whether any of `slots` may not draw every token."""
        return bool(self._constraints.constrained(slots).any())

    def num_possible_drafts(self, slot: int, token_ids: NDArray[np.int64]) -> int:
        """How many of the first drafts of a slot its grammar lets follow each other."""
        return self._constraints.num_possible_drafts(slot, token_ids)

    def takes_most_likely(self, rows: DrawRows) -> bool:
        """Whether each row takes the token of its largest logit, and nobody asks for more of the logits."""
        table, slots, num_output_tokens = self._table, rows.row_slots, rows.num_output_tokens
        plain = (table.temperature[slots] == 0) & (table.num_logprobs[slots] == NO_LOGPROBS)
        plain &= (table.num_biased[slots] == 0) & (num_output_tokens >= table.min_tokens[slots])
        return bool((plain & ~table.penalised(slots) & ~self._constraints.constrained(slots)).all())

    def sample(self, logits: Tensor, rows: DrawRows) -> Draws:
        """Draws one token for each row of `logits` [rows, vocab], which may be overwritten, as if the drafts before it
        had been drawn; of a slot's tokens those count whose drafts were.

        A row without a finite largest logit fails; the others do not notice.
        """
        logits, slots = logits.float(), rows.row_slots
        raw = self._raw_logprobs(logits, slots)
        self._add_biases(logits, slots)
        failures = self._constraints.apply(logits, rows)
        self._mask_ending_tokens(logits, slots, rows.num_output_tokens)
        self._penalties.apply(logits, rows)
        chosen = self._choose(logits, slots, rows.positions)
        # The step's one wait for the device, unless somebody asked for log-probabilities.
        token_ids = chosen.cpu().numpy()
        counts = count_drawn(rows, token_ids)
        counted = _counted(rows, counts)
        self._penalties.record(slots[counted], token_ids[counted])
        self._constraints.record(slots[counted], token_ids[counted])
        logprobs = self._report(raw, slots, token_ids, counted) if raw is not None else {}
        return _draws(rows, token_ids[counted], counts, logprobs, failures)

    def _raw_logprobs(self, logits: Tensor, slots: NDArray[np.int64]) -> _RawLogprobs | None:
        rows = np.flatnonzero(self._table.num_logprobs[slots] != NO_LOGPROBS)
        if rows.size == 0:
            return None
        return _RawLogprobs(rows=rows, values=logits[self._upload(rows)].log_softmax(dim=-1))

    def _add_biases(self, logits: Tensor, slots: NDArray[np.int64]) -> None:
        rows = np.flatnonzero(self._table.num_biased[slots])
        if rows.size == 0:
            return
        width = int(self._table.num_biased[slots[rows]].max())
        token_ids = self._upload(self._table.biased_token_ids[slots[rows], :width])
        biases = self._upload(self._table.biases[slots[rows], :width])
        logits.index_put_((self._upload(rows)[:, None], token_ids), biases, accumulate=True)

    def _mask_ending_tokens(
        self, logits: Tensor, slots: NDArray[np.int64], num_output_tokens: NDArray[np.int64]
    ) -> None:
        too_short = (num_output_tokens < self._table.min_tokens[slots]) & ~self._constraints.constrained(slots)
        rows = np.flatnonzero(too_short & (self._table.num_ending[slots] > 0))
        if rows.size == 0:
            return
        width = int(self._table.num_ending[slots[rows]].max())
        token_ids = self._upload(self._table.ending_token_ids[slots[rows], :width])
        logits[self._upload(rows)[:, None], token_ids] = -torch.inf

    def _choose(self, logits: Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Token ids [rows] int64, FAILED where the largest logit is not a finite number."""
        largest, token_ids = logits.max(dim=-1)
        rows = np.flatnonzero(self._table.temperature[slots] > 0)
        if rows.size == len(slots):
            token_ids = self._draw_randomly(logits, slots, positions)
        elif rows.size > 0:
            index = self._upload(rows)
            token_ids[index] = self._draw_randomly(logits[index], slots[rows], positions[rows])
        return torch.where(largest.isfinite(), token_ids, FAILED)

    def _draw_randomly(self, logits: Tensor, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Overwrites `logits`."""
        table = self._table
        # Shifted first, because a temperature that is all but zero would make the largest logit infinite.
        logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(self._upload(table.temperature[slots])[:, None])
        probs = logits.softmax(dim=-1)
        top_k, top_p, min_p = table.top_k[slots], table.top_p[slots], table.min_p[slots]
        if (top_k > 0).any() or (top_p < 1).any() or (min_p > 0).any():
            top_k = np.where(top_k > 0, top_k, self._vocab_size)
            truncation = Truncation(
                top_k=self._upload(top_k)[:, None],
                top_p=self._upload(top_p)[:, None],
                min_p=self._upload(min_p)[:, None],
            )
            truncate(probs, truncation)
        numbers = uniforms(table.seeds[slots], table.choice_indexes[slots], positions)
        return draw(probs, self._upload(numbers))

    def _report(
        self,
        raw: _RawLogprobs,
        slots: NDArray[np.int64],
        token_ids: NDArray[np.int64],
        counted: NDArray[np.int64],
    ) -> dict[int, tuple[TokenLogprobs, ...]]:
        counts = self._table.num_logprobs[slots[raw.rows]]
        # At least one column, so that one shape serves those who want no alternatives.
        top = raw.values.topk(min(max(int(counts.max()), 1), self._vocab_size), dim=-1)
        chosen_index = self._upload(token_ids[raw.rows].clip(min=0))
        chosen = raw.values.gather(-1, chosen_index[:, None])[:, 0].tolist()
        top_token_ids, top_logprobs = top.indices.tolist(), top.values.tolist()
        reports: dict[int, list[TokenLogprobs]] = {}
        for i in np.flatnonzero(np.isin(raw.rows, counted)).tolist():
            count = int(counts[i])
            reports.setdefault(int(slots[raw.rows[i]]), []).append(
                TokenLogprobs(chosen[i], tuple(top_token_ids[i][:count]), tuple(top_logprobs[i][:count]))
            )
        return {slot: tuple(logprobs) for slot, logprobs in reports.items()}

    def _upload(self, array: NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
