"""Pages are there before they are used, and nothing else of the memory changes."""

import ctypes
import mmap
import time

import pytest
import torch

from pageloom_kernels.cpu.memory_ahead import MemoryAhead
from tests.kernels.cpu.libraries import load

MIB = 1 << 20
REGION_BYTES = 24 * MIB


def resident_bytes(region: torch.Tensor) -> int:
    """As the system sees it, by whole pages."""
    start = -(-region.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    num_pages = (region.data_ptr() + region.nbytes - start) // mmap.PAGESIZE
    pages = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(num_pages * mmap.PAGESIZE), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def wait_until_resident(memory: MemoryAhead, num_bytes: int) -> None:
    deadline_s = time.monotonic() + 60
    while memory.num_resident_bytes < num_bytes:
        assert time.monotonic() < deadline_s, memory.num_resident_bytes
        time.sleep(0.005)


@pytest.fixture
def regions():
    # From the system: what malloc gives may have been used before, and be resident.
    memory = mmap.mmap(-1, 2 * REGION_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(2, REGION_BYTES)


def test_memory_is_resident_a_little_beyond_what_is_used(regions):
    assert resident_bytes(regions[1]) == 0
    memory = MemoryAhead(load("avx2"), regions, 16 * MIB)
    wait_until_resident(memory, 8 * MIB)
    # A huge page may reach from one region into the next, and beyond what was asked for.
    for region in regions:
        assert 8 * MIB - mmap.PAGESIZE <= resident_bytes(region) <= 14 * MIB
    memory.used(4 * MIB)
    wait_until_resident(memory, 12 * MIB)
    memory.used(REGION_BYTES)
    wait_until_resident(memory, REGION_BYTES)
    assert resident_bytes(regions[0]) >= REGION_BYTES - mmap.PAGESIZE


def test_contents_stay(regions):
    regions[1, 5 * MIB] = 7
    memory = MemoryAhead(load("avx2"), regions, 64 * MIB)
    wait_until_resident(memory, REGION_BYTES)
    assert regions[1, 5 * MIB] == 7
    assert int(regions.sum(dtype=torch.int64)) == 7


def test_it_ends_while_it_has_work(regions):
    memory = MemoryAhead(load("avx2"), regions, 64 * MIB)
    memory.used(REGION_BYTES)
    del memory
