"""A worker of several ranks behind real clients: one that dies costs nobody a token, and nothing is left running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.group_stack import complete, make_tiny, ranks, stream
from tests.support.serving import serving

PROMPTS = ["One", "The quick brown fox", "Hello"]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("group") / "tiny")


def wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    _gone, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return alive


@pytest.mark.parametrize(("split", "victim"), [("--tensor-parallel-size", 1), ("--pipeline-parallel-size", 0)])
def test_a_rank_that_is_killed_changes_nobodys_text(tmp_path: Path, tiny_folder: Path, split: str, victim: int):
    with serving(
        tmp_path, str(tiny_folder), split, "2", "--dtype", "float32", "--served-model-name", "tiny"
    ) as running:
        alone = [complete(running, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            assert list(clients.map(partial(complete, running), PROMPTS)) == alone
        before = ranks(running)
        assert before.keys() == {0, 1}
        texts = stream(running)
        received = [next(texts)]
        before[victim].kill()
        # Silence would be noticed after ten seconds, the end of a process at once.
        assert not wait_until_gone(list(before.values()), 9)
        assert "".join((*received, *texts)) == alone[0]
        started_again = {process.pid for process in ranks(running).values()}
        assert started_again.isdisjoint(process.pid for process in before.values())
        processes = psutil.Process(running.process.pid).children(recursive=True)
        assert running.stop() == 0
        assert not wait_until_gone(processes, 10)


# Of so many ranks none may be started to find it out.
@pytest.mark.parametrize(
    ("flag", "size", "words"),
    [("--tensor-parallel-size", 3, "sizes that do: 1, 2, 4"), ("--pipeline-parallel-size", 1000, "sizes 1 to")],
)
def test_a_split_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, tiny_folder: Path, flag: str, size: int, words: str
):
    refused = pytest.raises(AssertionError, match=words)
    with refused as refusal, serving(tmp_path, str(tiny_folder), flag, str(size)):
        pass
    assert "Traceback" not in str(refusal.value)
