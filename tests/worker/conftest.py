"""What tests of drafters have in common."""

import pytest

from tests.support.free_drafts import FREE_DRAFTS


@pytest.fixture
def free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in FREE_DRAFTS:
        monkeypatch.setattr(owner, name, value)
