"""The threads that the kernels run in, and the cores that they are pinned to."""

from __future__ import annotations

import os
import weakref
from ctypes import c_int
from pathlib import Path

from pageloom_kernels.cpu.library import CpuLibrary

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class ThreadPool:
    """`num_threads` threads, the calling one included while a kernel runs. Only one kernel runs at a time.

    Raises MemoryError if the system gives no more threads.
    """

    def __init__(self, library: CpuLibrary, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        cpus = choose_cpus(num_threads)
        functions = library.functions
        self.handle: int = functions.pageloom_pool_create(num_threads, (c_int * len(cpus))(*cpus) if cpus else None)
        if not self.handle:
            raise MemoryError(f"{num_threads} threads cannot be started")
        # Not at exit: threads that wait are ended by the system, and another thread may still be in a step.
        weakref.finalize(self, functions.pageloom_pool_free, self.handle).atexit = False


def choose_cpus(num_threads: int) -> list[int]:
    """The CPUs to pin to, one for each thread: whole cores first, then their second hardware threads.

    Empty, for none, if that would leave cores out: another process may share the machine by the same rule, and
    both would take the same ones. Empty too if there are more threads than CPUs.
    """
    ranks = _ranks()
    if not count_cores() <= num_threads <= len(ranks):
        return []
    return sorted(ranks, key=lambda cpu: (ranks[cpu], cpu))[:num_threads]


def count_cores() -> int:
    """Cores that this process may run on, whose hardware threads count once."""
    return sum(rank == 0 for rank in _ranks().values())


def _ranks() -> dict[int, int]:
    """How many hardware threads of the same core come before each usable CPU."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return {cpu: sum(other < cpu and other in usable for other in _siblings(cpu)) for cpu in usable}


def _siblings(cpu: int) -> set[int]:
    """The CPUs that are hardware threads of the same core."""
    try:
        text = Path(_TOPOLOGY.format(cpu)).read_text()
        spans = [[int(end) for end in span.split("-")] for span in text.strip().split(",")]
    except (OSError, ValueError):
        return {cpu}
    return {other for span in spans for other in range(span[0], span[-1] + 1)}
