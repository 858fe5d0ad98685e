"""Every guess is run: it is known to cost nothing, and no step teaches better."""

from __future__ import annotations

from typing import Any

import numpy as np

from worker_svc import runner
from worker_svc.drafting.draft_lengths import DraftLengths
from worker_svc.drafting.step_costs import StepCosts

_COSTS = StepCosts(np.array([1]), np.array([1.0]))
# What is set to make it so: object, name of the attribute, value.
FREE_DRAFTS: tuple[tuple[Any, str, Any], ...] = (
    (runner, "measure_step_costs", lambda _run, _most_rows: _COSTS),
    (DraftLengths, "record_guess", lambda *_args: None),
    (DraftLengths, "record_step", lambda *_args: None),
)
