"""What of the host may this process use? Cores and memory, as the container's limits leave them."""

from __future__ import annotations

import os
from pathlib import Path

from pageloom_kernels.cpu.thread_pool import count_cores

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def usable_cores() -> int:
    """Cores that this process may be scheduled on, or the whole cores of its CPU quota if that is less. The hardware
    threads of a core count once, because they share what computes."""
    cores = count_cores()
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_memory_bytes() -> int:
    """Memory that can still be taken without swapping."""
    available = _free_memory_bytes()
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def _free_memory_bytes() -> int:
    for line in _read(_MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    # Not Linux: half of what is built in.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
