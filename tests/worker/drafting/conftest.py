"""What tests of drafters have in common."""

import numpy as np
import pytest

from worker_svc import runner
from worker_svc.drafting.draft_lengths import DraftLengths
from worker_svc.drafting.step_costs import StepCosts


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess is run: it is known to cost nothing, and no step teaches better."""
    costs = StepCosts(np.array([1]), np.array([1.0]))
    monkeypatch.setattr(runner, "measure_step_costs", lambda _run, _most_rows: costs)
    monkeypatch.setattr(DraftLengths, "record_guess", lambda *_args: None)
    monkeypatch.setattr(DraftLengths, "record_step", lambda *_args: None)
