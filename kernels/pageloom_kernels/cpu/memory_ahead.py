"""Memory that is resident shortly before it is first used."""

from __future__ import annotations

import weakref

from torch import Tensor

from pageloom_kernels.cpu.library import CpuLibrary


class MemoryAhead:
    """Fills in the pages of `regions` [regions, ...] in the background, `ahead_bytes` of it beyond what is used.

    The regions are zeroed, contiguous and used from their starts upwards, all alike; what is in them does not change.
    Raises MemoryError if the system gives no more threads.
    """

    def __init__(self, library: CpuLibrary, regions: Tensor, ahead_bytes: int) -> None:
        assert regions.is_contiguous()
        self._functions = library.functions
        # Kept until the thread has ended.
        self._regions = regions
        handle = self._functions.pageloom_memory_ahead_create(
            regions.data_ptr(), len(regions), regions.nbytes // len(regions), ahead_bytes // len(regions)
        )
        if not handle:
            raise MemoryError("the thread for the KV memory cannot be started")
        self._handle: int = handle
        # Not at exit: the system ends the thread.
        weakref.finalize(self, self._functions.pageloom_memory_ahead_free, handle).atexit = False

    def used(self, region_bytes: int) -> None:
        """So many bytes of each region are in use. Returns at once."""
        self._functions.pageloom_memory_ahead_used(self._handle, region_bytes)

    @property
    def num_resident_bytes(self) -> int:
        """What was filled in of each region so far."""
        count: int = self._functions.pageloom_memory_ahead_resident(self._handle)
        return count
