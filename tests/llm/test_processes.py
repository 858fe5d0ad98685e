"""No process outlives the program that made it, however that ends."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pageloom import LLM, SamplingParams
from pageloom.errors import EngineError
from pageloom.llm.metrics import Gauge
from tests.support.group_stack import make_tiny

TIMEOUT_S = 60.0
# Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be here.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from pageloom import LLM, SamplingParams
from pageloom.errors import EngineError
print("starting", flush=True)
llm = LLM(kv_cache_memory_bytes=64 * 1024**2)
endless = SamplingParams(max_tokens=None, ignore_eos=True)
try:
    print("generating", flush=True)
    llm.generate(["a", "b", "c"], endless)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print(llm.generate("The capital of France is", SamplingParams(temperature=0.0))[0].outputs[0].text, flush=True)
except EngineError as error:
    print(error, flush=True)
raise ValueError("the program's own error")
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"

    def services(self, count: int) -> list[psutil.Process]:
        """Its processes, once there are as many."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            children = psutil.Process(self.process.pid).children(recursive=True)
            if len(children) >= count:
                return children
            time.sleep(0.02)
        raise AssertionError(f"fewer than {count} processes after {TIMEOUT_S:g} s")

    def end(self) -> tuple[int, str, str]:
        """Exit code and what it wrote."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@contextmanager
def running() -> Iterator[Program]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield Program(process)
    finally:
        process.kill()
        process.communicate()


def assert_gone(processes: list[psutil.Process]) -> None:
    _gone, alive = psutil.wait_procs(processes, timeout=15)
    assert not alive


def test_ctrl_c_and_then_an_exception():
    with running() as program:
        program.wait_for("starting")
        program.wait_for("generating")
        services = program.services(2)
        program.process.send_signal(signal.SIGINT)
        program.wait_for("interrupted")
        code, out, err = program.end()
        assert code == 1
        # The engine was left as it was.
        assert "Paris" in out
        assert err.rstrip().endswith("ValueError: the program's own error")
        assert_gone(services)


def test_ctrl_c_while_the_model_loads():
    with running() as program:
        program.wait_for("starting")
        services = program.services(2)
        program.process.send_signal(signal.SIGINT)
        code, out, err = program.end()
        assert code != 0
        assert "generating" not in out
        assert "KeyboardInterrupt" in err
        assert_gone(services)


def test_who_still_waits_is_told_of_the_end(llm: LLM, address: str):
    def is_running() -> bool:
        metrics = [metric for metric in llm.get_metrics() if isinstance(metric, Gauge)]
        return any(metric.value for metric in metrics if metric.name == "pageloom_num_requests_running")

    with LLM(address=address) as other, ThreadPoolExecutor(1) as threads:
        endless = threads.submit(other.generate, "a", SamplingParams(max_tokens=None, ignore_eos=True))
        while not is_running():
            time.sleep(0.02)
        other.shutdown()
        with pytest.raises(EngineError, match="was shut down"):
            endless.result(TIMEOUT_S)


def test_a_forked_process_is_told_and_leaves_the_engine_alone(llm: LLM):
    def ask(answers: "multiprocessing.Queue[str]") -> None:
        for use in (lambda: llm.generate("a"), LLM, llm.shutdown):
            try:
                answers.put(f"done: {use()}")
            except RuntimeError as error:
                answers.put(str(error))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    forked = context.Process(target=ask, args=(answers,))
    forked.start()
    *refusals, shutdown = [answers.get(timeout=TIMEOUT_S) for _ in range(3)]
    assert all("'spawn'" in refusal for refusal in refusals)
    assert shutdown == "done: None"
    forked.join(TIMEOUT_S)
    assert forked.exitcode == 0
    assert "Paris" in llm.generate("The capital of France is", SamplingParams(temperature=0.0))[0].outputs[0].text


@pytest.mark.parametrize("victim", ["program", "worker_svc"])
def test_a_process_that_is_killed(victim: str):
    with running() as program:
        program.wait_for("starting")
        program.wait_for("generating")
        services = program.services(2)
        if victim == "program":
            program.process.kill()
        else:
            next(each for each in services if victim in each.cmdline()).kill()
            program.wait_for("the engine is gone: its worker ended with exit code -9")
            assert program.end()[0] == 1
        assert_gone(services)


def test_the_other_worker_goes_on(caplog: pytest.LogCaptureFixture):
    prompts = ["One", "The quick brown fox", "Hello", "The capital of France is"]
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    with LLM(data_parallel_size=2, kv_cache_memory_bytes=64 * 1024**2) as llm:
        stack = llm._engine.stack
        assert stack is not None
        before = llm.generate(prompts, params)
        killing = threading.Timer(0.2, psutil.Process(stack.pid("worker-0")).kill)
        killing.start()
        after = llm.generate(prompts, params)
        killing.join()
        assert [output.outputs[0].text for output in after] == [output.outputs[0].text for output in before]
        # Which may be told a moment later.
        assert llm.generate(prompts, params)[0].outputs[0].text == before[0].outputs[0].text
        assert "worker-0 ended with exit code -9; the others go on without it" in caplog.text
        assert any(metric.name.startswith("pageloom_worker") for metric in llm.get_metrics())
        psutil.Process(stack.pid("worker-1")).kill()
        with pytest.raises(EngineError, match="worker-1 ended with exit code -9"):
            llm.generate(prompts, params)


def test_a_group_that_starts_again_has_its_metrics_elsewhere(tmp_path: Path):
    tiny = make_tiny(tmp_path / "tiny")
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(str(tiny), tensor_parallel_size=2, dtype="float32") as llm:
        stack = llm._engine.stack
        assert stack is not None
        before, urls = llm.generate("One", params), stack.metrics_urls
        assert any(metric.name.startswith("pageloom_worker") for metric in llm.get_metrics())
        worker = psutil.Process(stack.pid("worker"))
        rank = next(each for each in worker.children(recursive=True) if each.environ().get("RANK") == "1")
        rank.kill()
        assert llm.generate("One", params)[0].outputs[0].text == before[0].outputs[0].text
        deadline = time.monotonic() + TIMEOUT_S
        while stack.metrics_urls == urls and time.monotonic() < deadline:
            time.sleep(0.02)
        assert any(metric.name.startswith("pageloom_worker") for metric in llm.get_metrics())
