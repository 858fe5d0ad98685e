"""Which prefixes are being computed right now? Who waits for one of them need not compute it too."""

from __future__ import annotations

from collections.abc import Sequence


class PrefixPromises:
    """Counts, by chained hash, the bound sequences that will publish a block of this content soon."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def make(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self._counts[block_hash] = self._counts.get(block_hash, 0) + 1

    def settle(self, hashes: Sequence[bytes]) -> None:
        """Kept, or given up; each was made before."""
        for block_hash in hashes:
            count = self._counts[block_hash] - 1
            if count:
                self._counts[block_hash] = count
            else:
                del self._counts[block_hash]
