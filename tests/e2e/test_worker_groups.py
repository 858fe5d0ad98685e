"""A worker of several ranks behind real clients: one that dies costs nobody a token, and nothing is left running."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pageloom.gguf_file import read_gguf
from pageloom.gguf_tokenizer import build_backend
from pageloom.model_files import locate_model
from tests.support.serving import Serving, serving
from tests.support.tiny_checkpoints import make_checkpoint

BODY = {"model": "tiny", "prompt": "One", "max_tokens": 150, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("group") / "tiny"
    make_checkpoint(folder, vocab_size=49152)
    build_backend(read_gguf(locate_model("").path).metadata).save(str(folder / "tokenizer.json"))
    return folder


def ranks(running: Serving) -> dict[int, psutil.Process]:
    """The processes of the ranks of the only worker, by rank."""
    children = running.services()["worker_svc"].children(recursive=True)
    # torchrun's own command names the module too, but not first.
    found = [child for child in children if child.cmdline()[2:4] == ["-m", "worker_svc.parallel.rank"]]
    return {int(child.environ()["RANK"]): child for child in found}


def stream(running: Serving) -> Iterator[str]:
    with httpx.stream("POST", f"{running.url}/v1/completions", json={**BODY, "stream": True}, timeout=120) as response:
        # Pings come too, while the group starts again.
        for line in (line for line in response.iter_lines() if line.startswith("data: ")):
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            yield json.loads(data)["choices"][0]["text"]
    raise AssertionError("the stream ended without [DONE]")


def complete(running: Serving) -> str:
    answer = httpx.post(f"{running.url}/v1/completions", json=BODY, timeout=120)
    text: str = answer.json()["choices"][0]["text"]
    return text


def wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    _gone, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return alive


def test_a_rank_that_is_killed_changes_nobodys_text(tmp_path: Path, tiny_folder: Path):
    args = ("--tensor-parallel-size", "2", "--dtype", "float32", "--served-model-name", "tiny")
    with serving(tmp_path, str(tiny_folder), *args) as running:
        alone = complete(running)
        for victim in (1, 0):
            before = ranks(running)
            assert before.keys() == {0, 1}
            texts = stream(running)
            received = [next(texts)]
            before[victim].kill()
            killed_s = time.monotonic()
            assert not wait_until_gone(list(before.values()), 10)
            assert time.monotonic() - killed_s < 10
            assert "".join((*received, *texts)) == alone
            assert {process.pid for process in ranks(running).values()}.isdisjoint(
                process.pid for process in before.values()
            )
        processes = [*psutil.Process(running.process.pid).children(recursive=True)]
        assert running.stop() == 0
        assert not wait_until_gone(processes, 10)


def test_a_split_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, tiny_folder: Path):
    refused = pytest.raises(AssertionError, match="sizes that do: 1, 2, 4")
    with refused as refusal, serving(tmp_path, str(tiny_folder), "--tensor-parallel-size", "3"):
        pass
    assert "Traceback" not in str(refusal.value)
