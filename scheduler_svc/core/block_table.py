"""Whose blocks are these? Block tables of one worker: attach a cached prefix, grow, publish, release."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.plan import CacheInfo
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.prefix_cache import CacheNamespace, HashChain, Prefix, PrefixCache
from scheduler_svc.core.sequence import Binding, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedBlocks:
    """The table of a sequence about to be bound: `num_cached_blocks` leading blocks hold its KV already."""

    block_ids: list[int]
    num_cached_blocks: int
    published: Prefix


class BlockTables:
    """Moves blocks between the pool, the tables of bound sequences, and the prefix cache.

    A block may be in several tables only if it is full and was acknowledged; a block being written
    is in one. Tables only grow at the end.
    """

    def __init__(self, cache: CacheInfo, *, enable_prefix_caching: bool) -> None:
        self.block_size = cache.block_size
        self.pool = BlockPool(cache.num_blocks)
        self.prefix_cache = PrefixCache()
        self.enable_prefix_caching = enable_prefix_caching

    def attach(self, sequence: Sequence, namespace: CacheNamespace, num_reserved_blocks: int) -> AttachedBlocks | None:
        """Blocks for all known tokens of a sequence, cached ones first.

        None, and nothing changed, unless `num_reserved_blocks` would stay free.
        """
        num_known_tokens = len(sequence.token_ids)
        # At least one token must run to draw the next, so a hit never covers all of them.
        max_num_hits = (num_known_tokens - 1) // self.block_size if self.enable_prefix_caching else 0
        hits = self.prefix_cache.match(self._chain(sequence, namespace), sequence.token_ids, max_num_hits)
        num_new_blocks = -(-num_known_tokens // self.block_size) - len(hits)
        num_free_hits = sum(self.pool.ref_count(hit.block_id) == 0 for hit in hits)
        if num_new_blocks + num_reserved_blocks > self.pool.num_free - num_free_hits:
            return None
        # Hits first: a free one would otherwise be among those taken.
        for hit in hits:
            self.pool.share(hit.block_id)
        return AttachedBlocks(
            block_ids=[hit.block_id for hit in hits] + self._take(num_new_blocks),
            num_cached_blocks=len(hits),
            published=hits[-1] if hits else namespace,
        )

    def grow(self, binding: Binding) -> int | None:
        """Appends a block to a table and returns its id; None if no block is free."""
        if self.pool.num_free == 0:
            return None
        (block_id,) = self._take(1)
        binding.block_ids.append(block_id)
        return block_id

    def publish(self, binding: Binding) -> None:
        """Offers the blocks that acknowledged runs have filled to the prefix cache, generated tokens too."""
        sequence, block_size = binding.sequence, self.block_size
        num_full_blocks = binding.num_computed_tokens // block_size
        chain = sequence.hash_chain
        if chain is None or not self.enable_prefix_caching:
            return
        chain.extend(sequence.token_ids, num_full_blocks)
        for index in range(binding.num_published_blocks, num_full_blocks):
            start = index * block_size
            binding.published = self.prefix_cache.publish(
                binding.block_ids[index],
                chain.hashes[index],
                binding.published,
                tuple(sequence.token_ids[start : start + block_size]),
            )
        binding.num_published_blocks = num_full_blocks

    def release(self, binding: Binding) -> None:
        """Gives a table's blocks back. Those with cached content keep it until they are taken again."""
        # Last block first, so that of one prefix the tail is evicted before what it hangs on.
        for block_id in reversed(binding.block_ids):
            self.pool.release(block_id, worth_keeping=block_id in self.prefix_cache)
        binding.block_ids.clear()

    def distrust(self, binding: Binding) -> None:
        """After a failed run: no later request shall read the KV that this one read."""
        for block_id in binding.block_ids:
            self.prefix_cache.forget(block_id)

    def _take(self, num_blocks: int) -> list[int]:
        block_ids = self.pool.take(num_blocks)
        for block_id in block_ids:
            self.prefix_cache.forget(block_id)
        return block_ids

    def _chain(self, sequence: Sequence, namespace: CacheNamespace) -> HashChain:
        chain = sequence.hash_chain
        if chain is None or chain.block_size != self.block_size:
            # First admission, or to a worker whose blocks have another size.
            chain = sequence.hash_chain = HashChain(namespace, self.block_size)
        return chain
