"""What tests of drafters have in common."""

import numpy as np
import pytest

from worker_svc import runner
from worker_svc.drafting.step_costs import StepCosts


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess is run: beside a step that takes hours it costs nothing."""
    costs = StepCosts(np.array([1]), np.array([1e4]))
    monkeypatch.setattr(runner, "measure_step_costs", lambda _run, _most_rows: costs)
