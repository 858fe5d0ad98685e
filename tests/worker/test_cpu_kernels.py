"""What computes, and what the log says where it is not the library."""

import json
import os
import subprocess
import sys

import pytest
import structlog

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom_kernels.cpu import library
from pageloom_kernels.cpu.library import load_cpu_library
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.runner import ModelRunner, load_runner


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    make_checkpoint(path)
    return path


@pytest.fixture
def instruction_set(monkeypatch):
    """`instruction_set(name)` forces one, as on a machine that has nothing better."""

    def force(name):
        monkeypatch.setenv("PAGELOOM_CPU_ISA", name)
        load_cpu_library.cache_clear()

    yield force
    load_cpu_library.cache_clear()


def load_tiny(folder, **settings) -> tuple[ModelRunner, list[str]]:
    """The runner, and why the log says that PyTorch takes over."""
    defaults = {"device": "cpu", "dtype": "bfloat16", "cpu_kernels": "auto", "num_blocks": 8}
    values = {"model": str(folder), **defaults, **settings}
    with structlog.testing.capture_logs() as lines:
        runner = load_runner(WorkerConfig(**values), lambda _done, _total: None)
    return runner, [line["reason"] for line in lines if line["event"].startswith("PyTorch computes instead")]


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_the_library_runs_bfloat16(folder, instruction_set, name):
    load(name)
    instruction_set(name)
    runner, reasons = load_tiny(folder, num_threads=1)
    assert (runner.kernels, reasons) == (f"C++ for {name}, 1 thread", [])


def test_quantized_weights_and_float16_become_bfloat16_where_only_the_library_has_it(folder, instruction_set):
    load("avx2")
    instruction_set("avx2")
    runner, _ = load_tiny("", dtype="auto", quantization="none")
    assert runner.model_info.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"block_size": 16, "num_blocks": 16}, "hold 32 tokens or a multiple, and --block-size is 16"),
        ({"instruction_set": "none"}, "PAGELOOM_CPU_ISA=none, which is not what this processor has"),
        ({"instruction_set": "sse"}, "PAGELOOM_CPU_ISA=sse is none of avx512_bf16, avx512, avx2 and none"),
    ],
)
def test_one_line_says_why_pytorch_computes(folder, instruction_set, settings, reason):
    load("avx2")
    instruction_set(settings.pop("instruction_set", "avx2"))
    runner, reasons = load_tiny(folder, **settings)
    assert runner.kernels == "PyTorch"
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_an_installation_without_a_compiler_falls_back(folder, instruction_set, monkeypatch, tmp_path):
    load("avx2")
    instruction_set("avx2")
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    runner, reasons = load_tiny(folder)
    assert runner.kernels == "PyTorch"
    (reason,) = reasons
    assert reason.startswith("they were not built when pageloom was installed, which needs a C++ compiler")
    assert "`python kernels/compile_cpu.py` builds them" in reason


def test_a_library_that_is_older_than_its_callers_falls_back(folder, instruction_set, monkeypatch):
    load("avx2")
    instruction_set("avx2")
    monkeypatch.setitem(library._SIGNATURES, "added_today", (None, ()))
    runner, reasons = load_tiny(folder)
    assert runner.kernels == "PyTorch"
    (reason,) = reasons
    assert "older than the code that calls it" in reason
    assert "`python kernels/compile_cpu.py` builds them" in reason


@pytest.mark.parametrize("settings", [{"cpu_kernels": "torch"}, {"dtype": "float32"}])
def test_nothing_is_said_where_pytorch_was_asked_for(folder, settings):
    runner, reasons = load_tiny(folder, **settings)
    assert (runner.kernels, reasons) == ("PyTorch", [])


@pytest.mark.parametrize("name", ["avx2", "none"])
def test_a_process_on_an_older_machine(folder, name):
    """From a start of the interpreter on, as such a machine would run it."""
    load("avx2")
    script = (
        "import json, sys; from pageloom.config import WorkerConfig; from worker_svc.runner import load_runner;"
        "runner = load_runner(WorkerConfig(model=sys.argv[1], device='cpu', dtype='bfloat16', cpu_kernels='auto'),"
        " lambda *_: None);"
        "runner.warm_up(); print(json.dumps(runner.kernels))"
    )
    environment = {**os.environ, "PAGELOOM_CPU_ISA": name}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert kernels.startswith("C++ for avx2" if name == "avx2" else "PyTorch")
    assert done.stdout.count("PyTorch computes instead") == (name == "none")


@pytest.mark.parametrize(
    ("settings", "dtype"), [({"cpu_kernels": "torch"}, "bfloat16"), ({"dtype": "float32"}, "float32")]
)
def test_batch_invariance_is_refused_where_it_cannot_be_had(folder, settings, dtype):
    with pytest.raises(InvalidConfig, match=rf"--batch-invariant needs the C\+\+ kernels.*PyTorch in {dtype}"):
        load_tiny(folder, batch_invariant=True, **settings)


def test_the_cpp_kernels_are_batch_invariant(folder, instruction_set):
    load("avx2")
    instruction_set("avx2")
    runner, _ = load_tiny(folder, batch_invariant=True)
    assert runner.kernels.startswith("C++")
