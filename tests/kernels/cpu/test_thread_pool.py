"""Where the threads go, and that none of them is ever waited for in vain."""

import os
import threading

import pytest
import torch

from pageloom_kernels.cpu import thread_pool
from pageloom_kernels.cpu.thread_pool import choose_cpus, count_cores
from tests.kernels.cpu.libraries import load
from tests.kernels.cpu.matrices import Multiplier


@pytest.fixture
def machine(monkeypatch):
    """`machine(usable, siblings)` pretends to be one; siblings by CPU as in sysfs."""

    def pretend(usable, siblings):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(usable))
        monkeypatch.setattr(thread_pool, "_siblings", lambda cpu: siblings.get(cpu, {cpu}))

    return pretend


def test_whole_cores_come_first(machine):
    machine(range(8), {cpu: {cpu % 4, cpu % 4 + 4} for cpu in range(8)})
    assert choose_cpus(4) == [0, 1, 2, 3]
    assert choose_cpus(6) == [0, 1, 2, 3, 4, 5]
    machine([1, 4, 5, 6], {cpu: {cpu % 4, cpu % 4 + 4} for cpu in range(8)})
    assert choose_cpus(3) == [1, 4, 6]
    assert choose_cpus(4) == [1, 4, 6, 5]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_for_a_part_of_the_machine_or_more_than_it_has_are_not_pinned(machine, num_threads):
    machine([0, 1], {})
    assert choose_cpus(num_threads) == []
    assert choose_cpus(2) == [0, 1]


def test_hardware_threads_of_a_core_count_once(machine):
    machine(range(8), {cpu: {cpu % 4, cpu % 4 + 4} for cpu in range(8)})
    assert count_cores() == 4
    machine([1, 4, 5, 6], {cpu: {cpu % 4, cpu % 4 + 4} for cpu in range(8)})
    assert count_cores() == 3


def test_siblings_are_read_from_the_system(tmp_path, monkeypatch):
    monkeypatch.setattr(thread_pool, "_TOPOLOGY", str(tmp_path / "{}"))
    (tmp_path / "0").write_text("0,32\n")
    (tmp_path / "1").write_text("0-3\n")
    assert thread_pool._siblings(0) == {0, 32}
    assert thread_pool._siblings(1) == {0, 1, 2, 3}
    assert thread_pool._siblings(2) == {2}


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_thousands_of_small_jobs(num_threads):
    """Threads that sleep, wake, come late or find nothing left: more of them than cores."""
    weight = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    multiplier = Multiplier(load("avx2"), weight, num_threads=num_threads)
    row = torch.ones(1, 8, dtype=torch.bfloat16)
    expected = multiplier.sums(row)
    for _ in range(3000):
        assert torch.equal(multiplier.sums(row), expected)


def test_a_pool_ends_its_threads():
    before = threads_of_the_process()
    multiplier = Multiplier(load("avx2"), torch.ones(64, 8, dtype=torch.bfloat16), num_threads=4)
    multiplier.sums(torch.ones(1, 8, dtype=torch.bfloat16))
    assert threads_of_the_process() == before + 3
    del multiplier
    assert threads_of_the_process() == before


def test_the_caller_may_run_where_it_could_before():
    multiplier = Multiplier(load("avx2"), torch.ones(64, 8, dtype=torch.bfloat16), num_threads=2)
    before = os.sched_getaffinity(threading.get_native_id())
    multiplier.sums(torch.ones(1, 8, dtype=torch.bfloat16))
    assert os.sched_getaffinity(threading.get_native_id()) == before


def threads_of_the_process() -> int:
    return len(os.listdir("/proc/self/task"))
