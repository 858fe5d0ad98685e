"""How many tokens are worth guessing for each slot? What acceptance so far and the time of a step let expect.

A draft that is right saves its slot a step, and each draft makes the step of all a little longer. So the drafts of a
step are those that give most tokens per second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker_svc.drafting.step_costs import StepCosts

# What the first drafts of an output are given credit for: no more, because few of them suffice to show that they are
# good; and no less than the other, whatever became of earlier outputs' drafts, so that a few are tried.
_FIRST_ACCEPTANCE = 0.5
_LEAST_CREDIT = 0.3
# Hardly any are better. A batch in which such would not pay needs no drafts.
_BEST_ACCEPTANCE = 0.98
# Of the newest draft, in the average over a slot's drafts; and of the credit, in each step without any: an output that
# begins to repeat itself gets another try after a while.
_WEIGHT = 0.2
_RECOVERY = 0.01
# Of one draft, in the credit of outputs to come; and of one step in how its time compares with what was measured. A
# step that took far longer was held up by something else.
_SLOW_WEIGHT = 0.02
_STEP_WEIGHT = 0.1
_LONGEST_STEP = 3.0


class DraftLengths:
    """Columns over the slots. `acceptance` is how likely a draft is right if those before it were."""

    def __init__(self, costs: StepCosts, *, max_num_seqs: int, max_num_draft_tokens: int) -> None:
        self._costs = costs
        # By number of rows, as far as it was asked for: steps without any drafts are to cost next to nothing.
        self._step_s = costs.seconds(np.arange(1))
        self._ranks = np.arange(1, max_num_draft_tokens + 1)
        self._most_gained = np.cumsum(_BEST_ACCEPTANCE**self._ranks)
        self.acceptance = np.full(max_num_seqs, _FIRST_ACCEPTANCE)
        self._credit = _FIRST_ACCEPTANCE
        # Seconds that guessing one token more takes, of a drafter that works token by token.
        self._guess_s = 0.0
        # How long steps without and with drafts take, as multiples of the costs: the sampler is not in those.
        self._plain_ratio = self._drafted_ratio = 1.0

    def bind(self, slot: int) -> None:
        self.acceptance[slot] = self._credit

    def useful(self, acceptance: NDArray[np.float64], num_draws: int, num_rows: int) -> NDArray[np.int64]:
        """How many drafts are best for a slot of each `acceptance` [slots], if no other of the `num_draws` slots in a
        step of `num_rows` rows had any."""
        seconds = self._drafted_s(num_rows)
        rates = (num_draws + np.cumsum(acceptance[:, None] ** self._ranks, axis=1)) / seconds  # [slots, ranks]
        return np.where(rates.max(axis=1) > num_draws / self._plain_s(num_rows), rates.argmax(axis=1) + 1, 0)

    def undrafted_part(self, num_rows: int, num_drafts: int) -> float:
        """What a step takes without drafts, as a part of what it takes with them."""
        within = self._measured(num_rows + num_drafts)[num_rows + num_drafts] * self._drafted_ratio
        return float(self._plain_s(num_rows) / within)

    def most_useful(self, num_draws: int, num_rows: int) -> int:
        """Drafts beyond these are worth nothing in such a step, however good they are."""
        rates = (num_draws + self._most_gained) / self._drafted_s(num_rows)
        best = int(rates.argmax())
        return best + 1 if rates[best] > num_draws / self._plain_s(num_rows) else 0

    def chosen(
        self, slots: NDArray[np.int64], lens: NDArray[np.int64], num_draws: int, num_rows: int
    ) -> NDArray[np.int64]:
        """How many of the `lens` drafts at hand for each of `slots` to run, [slots]."""
        gains = self.acceptance[slots][:, None] ** self._ranks  # [slots, ranks]
        gains[self._ranks > lens[:, None]] = 0.0
        order = np.argsort(-gains, axis=None, kind="stable")
        num_tokens = num_draws + np.concatenate(([0.0], np.cumsum(gains.ravel()[order])))
        most_rows = num_rows + len(order)
        seconds = self._measured(most_rows)[num_rows : most_rows + 1] * self._drafted_ratio
        seconds[0] = self._plain_s(num_rows)
        best = int((num_tokens / seconds).argmax())
        # Of a slot the earlier drafts gain more, so each slot's chosen ones are its first.
        return np.bincount(order[:best] // len(self._ranks), minlength=len(slots))

    def record(self, slots: NDArray[np.int64], num_drafts: NDArray[np.int64], num_accepted: NDArray[np.int64]) -> None:
        """What has become of the drafts of a step's `slots`, which may have had none."""
        acceptance = self.acceptance[slots]
        rested = acceptance + _RECOVERY * np.maximum(0.0, _FIRST_ACCEPTANCE - acceptance)
        if not num_drafts.any():
            self.acceptance[slots] = rested
            return
        after = 1 - (1 - acceptance) * (1 - _WEIGHT) ** num_accepted
        after = np.where(num_accepted < num_drafts, after * (1 - _WEIGHT), after)
        self.acceptance[slots] = np.where(num_drafts > 0, after, rested)
        num_wrong = np.count_nonzero(num_accepted < num_drafts)
        self._credit = 1 - (1 - self._credit) * (1 - _SLOW_WEIGHT) ** int(num_accepted.sum())
        self._credit *= (1 - _SLOW_WEIGHT) ** num_wrong
        self._credit = min(max(self._credit, _LEAST_CREDIT), _FIRST_ACCEPTANCE)

    def record_guess(self, seconds: float, most_tokens: int) -> None:
        """How long guessing took, of at most so many tokens for a slot."""
        sample_s = seconds / most_tokens
        if self._guess_s:
            # A draft model may have had a prompt to catch up with.
            sample_s = min(sample_s, _LONGEST_STEP * self._guess_s)
        self._guess_s += _WEIGHT * (sample_s - self._guess_s)

    def record_step(self, seconds: float, num_rows: int, num_drafts: int) -> None:
        """How long a step of `num_rows` rows that draw, and drafts besides, took without the guessing."""
        ratio = seconds / float(self._measured(num_rows + num_drafts)[num_rows + num_drafts])
        if num_drafts:
            ratio = min(ratio, _LONGEST_STEP * self._drafted_ratio)
            self._drafted_ratio += _STEP_WEIGHT * (ratio - self._drafted_ratio)
        else:
            ratio = min(ratio, _LONGEST_STEP * self._plain_ratio)
            self._plain_ratio += _STEP_WEIGHT * (ratio - self._plain_ratio)
            # Of steps with drafts nothing is learned meanwhile, and they might be as good as any by now.
            self._drafted_ratio += _RECOVERY * (self._plain_ratio - self._drafted_ratio)
            self._guess_s -= _RECOVERY * self._guess_s

    def _plain_s(self, num_rows: int) -> float:
        """What a step of `num_rows` takes without drafts."""
        return float(self._measured(num_rows)[num_rows]) * self._plain_ratio

    def _drafted_s(self, num_rows: int) -> NDArray[np.float64]:
        """What a step of `num_rows` takes with each number of drafts for one slot, and the guessing, [ranks]."""
        most_rows = num_rows + len(self._ranks)
        seconds = self._measured(most_rows)[num_rows + 1 : most_rows + 1] * self._drafted_ratio
        return seconds + self._guess_s * self._ranks if self._guess_s else seconds

    def _measured(self, most_rows: int) -> NDArray[np.float64]:
        """Seconds of a step by its number of rows, up to `most_rows` at least."""
        if most_rows >= len(self._step_s):
            self._step_s = self._costs.seconds(np.arange(2 * most_rows))
        return self._step_s
