"""`pageloom simulate` as a user runs it: the table, the files, the errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pageloom.cli import app
from pageloom.errors import StartupError
from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation.__main__ import main


def simulate(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pageloom", "simulate", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_table_and_the_files(tmp_path: Path):
    figures, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    ended = simulate(
        *("--trace", "sharegpt", "--gpu", "A100-40GB", "--model", "OPT-13B", "--num-requests", "60"),
        *("--tenants", "a=1,b=2", "--json", str(figures), "--plot", str(plot)),
    )
    assert ended.returncode == 0, ended.stderr
    for words in (
        "sharegpt on 1 worker of A100-40GB with OPT-13B, paged",
        "time to first token",
        "60 of 60 finished",
        "KV waste",
        "preemptions",
        "tenant",
        "to plan a step",
    ):
        assert words in ended.stdout
    document = json.loads(figures.read_text())
    assert document["settings"]["model"] == "OPT-13B"
    assert document["report"]["num_finished"] == 60
    assert 0 < document["report"]["ttft_s"]["p50"] < document["report"]["e2e_s"]["p50"]
    assert plot.read_text().startswith("<?xml")


def test_a_png(tmp_path: Path):
    plot = tmp_path / "plot.png"
    in_this_process("--num-requests", "20", "--kv-policy", "oracle", "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")


def in_this_process(*args: str) -> None:
    """The command without its second process, which costs a second. Raises StartupError."""
    handed_over: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", lambda _path, argv, _environment: handed_over.extend(argv[2:]))
        ended = CliRunner().invoke(app, ["simulate", *args])
    if ended.exception is not None:
        raise ended.exception
    module, settings = handed_over
    assert module == "scheduler_svc.simulation"
    main(SimulationConfig.from_json(settings))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--gpu", "H300"), "there is no profile of the GPU 'H300'; there are h200, h100,"),
        (("--model", "gpt"), "there is no profile of the model 'gpt'; there are llama-3-8b,"),
        (("--trace", "nothing.csv"), "'nothing.csv' is neither a file nor one of azure-conv-excerpt,"),
        (("--plot", "plot.pdf"), "--plot must name a file that ends in .png or .svg, not 'plot.pdf'"),
        (("--num-requests", "5", "--json", "/nowhere/figures.json"), "/nowhere/figures.json cannot be written"),
        (("--json", "/tmp"), "/tmp cannot be written: it is a directory"),
        (("--num-requests", "5", "--json", "/dev/full"), "/dev/full cannot be written: No space left on device"),
        (("--hop-latency", "inf"), "--hop-latency must be between 0 and 60 seconds, not inf"),
        (("--length-scale", "1e300"), "longer than 16777216"),
        (("--request-rate", "1e-320"), "at most 1e+07 s are run"),
        (("--time-scale", "1e300"), "at most 1e+07 s are run"),
        (("--model", "llama-3-70b"), "leave no KV memory"),
        (("--request-rate", "1", "--time-scale", "2"), "give one of them"),
        (("--request-rate", "0"), "--request-rate must be above 0, not 0"),
        (("--tenants", "a"), "--tenants must be weights above 0 by name, such as a=1,b=10, not 'a'"),
        (("--kv-policy", "oracle", "--num-workers", "2"), "simulated with one worker, not 2"),
        (("--max-num-batched-tokens", "100"), "must be at least --max-num-seqs, which is 256, not 100"),
        (("--trace", "mooncake-conv-excerpt", "--length-scale", "0.001"), "whole and at least 8 tokens long"),
        (("--kv-cache-memory-bytes", "1k"), "too small for one block"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(args: tuple[str, ...], message: str):
    with pytest.raises(StartupError) as caught:
        in_this_process(*args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_ends_the_process_with_that_line():
    ended = simulate("--gpu", "H300")
    assert ended.returncode == 1
    assert ended.stderr.startswith("pageloom simulate: there is no profile of the GPU 'H300'")
    assert ended.stderr.count("\n") == 1
