"""A tiny model that `pageloom serve` splits over ranks, its rank processes, and a greedy completion of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from pageloom.gguf_file import read_gguf
from pageloom.gguf_tokenizer import build_backend
from pageloom.model_files import locate_model
from tests.support.serving import Serving
from tests.support.tiny_checkpoints import make_checkpoint

BODY = {"model": "tiny", "prompt": "One", "max_tokens": 80, "ignore_eos": True, "temperature": 0}


def make_tiny(folder: Path) -> Path:
    """A random model with the default model's tokenizer, in `folder`."""
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
    """The pieces of the answer to "One". Raises AssertionError if they end before it does."""
    with httpx.stream("POST", f"{running.url}/v1/completions", json={**BODY, "stream": True}, timeout=120) as response:
        # Pings come too, while the group starts again.
        for line in (line for line in response.iter_lines() if line.startswith("data: ")):
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            yield json.loads(data)["choices"][0]["text"]
    raise AssertionError("the stream ended without [DONE]")


def complete(running: Serving, prompt: str = "One") -> str:
    """The same answer, or that of another prompt, as a whole."""
    answer = httpx.post(f"{running.url}/v1/completions", json={**BODY, "prompt": prompt}, timeout=120)
    text: str = answer.json()["choices"][0]["text"]
    return text
