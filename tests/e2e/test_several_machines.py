"""A worker over two machines, which are two network namespaces: the link between them is cut in mid-stream."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.group_stack import complete, make_tiny, ranks, stream
from tests.support.serving import free_port, serving

OUR_ADDRESS, THEIR_ADDRESS = "10.213.77.1", "10.213.77.2"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@contextmanager
def other_machine() -> Iterator[str]:
    """The name of a namespace at THEIR_ADDRESS, which reaches this one at OUR_ADDRESS."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` to make network namespaces with")
    name, link = f"pageloom-{os.getpid()}", f"pl{os.getpid()}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "theirs", "netns", name)
        ip("address", "add", f"{OUR_ADDRESS}/24", "dev", link)
        ip("link", "set", link, "up")
        for args in (
            ("address", "add", f"{THEIR_ADDRESS}/24", "dev", "theirs"),
            ("link", "set", "theirs", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", name, *args)
        yield name
    finally:
        # With it goes the link.
        ip("netns", "delete", name)


def test_a_link_that_is_cut_changes_nobodys_text(tmp_path: Path):
    folder = make_tiny(tmp_path / "tiny")
    split = ["--pipeline-parallel-size", "2", "--nnodes", "2", "--master-addr", OUR_ADDRESS]
    split += ["--master-port", str(free_port()), "--dtype", "float32"]
    with other_machine() as name:
        command = [sys.executable, "-m", "pageloom", "worker", str(folder), *split, "--node-rank", "1"]
        # The second machine waits for the first one.
        theirs = subprocess.Popen(["ip", "netns", "exec", name, *command])
        try:
            with serving(tmp_path, str(folder), *split, "--served-model-name", "tiny") as running:
                before = ranks(running)
                assert before.keys() == {0}
                alone = complete(running)
                texts = stream(running)
                received = [next(texts)]
                ip("-n", name, "link", "set", "theirs", "down")
                # Silence tells the rank here that the other one is cut off.
                _gone, alive = psutil.wait_procs(before.values(), timeout=30)
                assert not alive
                ip("-n", name, "link", "set", "theirs", "up")
                assert "".join((*received, *texts)) == alone
                assert complete(running) == alone
        finally:
            theirs.terminate()
            theirs.wait(30)
