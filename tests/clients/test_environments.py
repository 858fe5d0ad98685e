"""What a failed installation leaves behind: nothing that counts as an environment."""

from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.environments import CannotInstallError, python_environment


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setenv("PAGELOOM_CLIENTS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_an_environment_is_made_once(requirements: Path):
    (requirements / "none.txt").write_text("# nothing is needed\n")
    interpreter = python_environment("none")
    made = interpreter.lstat().st_ctime_ns
    assert python_environment("none") == interpreter
    assert interpreter.lstat().st_ctime_ns == made
    (requirements / "none.txt").write_text("# nothing at all\n")
    assert python_environment("none") != interpreter


def test_a_failed_installation_says_why_and_is_tried_again(requirements: Path):
    (requirements / "broken.txt").write_text(f"{requirements}/missing-1.0-py3-none-any.whl\n")
    for _ in range(2):
        with pytest.raises(CannotInstallError, match=r"missing-1\.0"):
            python_environment("broken")
