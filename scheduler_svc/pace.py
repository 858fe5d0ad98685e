"""When is the next plan due? As late as hides the way to the worker, so that newcomers are in it."""

from __future__ import annotations

from scheduler_svc.core import StepFacts

# Of what a step is expected to take: the next plan goes out when this much has passed.
_PART_TO_WAIT = 0.75
# And so much earlier: planning, and the way to the worker, on a busy machine.
_LEAD_S = 0.003
_WEIGHT = 0.3


class Pace:
    """Expects steps to take what those before took: a base for each, and a time per prompt token.

    An estimate that is too short sends a plan earlier than need be; one that is too long does no harm
    either, for a result always asks for a plan at once.
    """

    def __init__(self) -> None:
        self._decode_step_s: float | None = None
        self._prompt_token_s: float | None = None

    def observe(self, facts: StepFacts, duration_s: float) -> None:
        """`duration_s` is the worker's own."""
        num_prompt_tokens = facts.num_tokens - facts.num_decode_seqs
        if num_prompt_tokens == 0:
            self._decode_step_s = _blend(self._decode_step_s, duration_s)
        elif duration_s > (base_s := self._decode_step_s or 0.0):
            self._prompt_token_s = _blend(self._prompt_token_s, (duration_s - base_s) / num_prompt_tokens)

    def delay_s(self, facts: StepFacts) -> float:
        """How long after the start of a step the plan for the next is due."""
        num_prompt_tokens = facts.num_tokens - facts.num_decode_seqs
        expected_s = num_prompt_tokens * (self._prompt_token_s or 0.0)
        if facts.num_decode_seqs:
            expected_s += self._decode_step_s or 0.0
        return max(0.0, expected_s * _PART_TO_WAIT - _LEAD_S)


def _blend(old: float | None, new: float) -> float:
    # Quick to believe in shorter steps, slow in longer ones.
    return new if old is None or new < old else old + _WEIGHT * (new - old)
