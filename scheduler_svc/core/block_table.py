"""Whose blocks are these? Block tables of one worker: attach a shared prefix, grow, publish, release."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.plan import CacheInfo
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.prefix_cache import CachedBlock, CacheNamespace, HashChain, Prefix, PrefixCache
from scheduler_svc.core.prefix_promises import PrefixPromises
from scheduler_svc.core.sequence import Binding, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A sibling whose committed steps have computed the first `num_tokens` tokens of a sequence that waits."""

    binding: Binding
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a sequence would get now: shared blocks first, the rest new. Nothing is taken yet.

    `num_computed_tokens` have their KV in the shared blocks and in a copy of the block `copied_block_id`,
    which is the last of `fork`: each of the two writes on in its own.
    """

    hits: list[CachedBlock]
    shared_block_ids: list[int]
    copied_block_id: int | None
    fork: Fork | None
    num_computed_tokens: int
    num_new_blocks: int
    # Of the shared blocks; a free one among them is one less for the others.
    num_free_shared: int

    @property
    def num_taken_blocks(self) -> int:
        """By how many the free blocks become fewer."""
        return self.num_new_blocks + self.num_free_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedBlocks:
    """The table of a sequence about to be bound. `copy` is (source, target) of a block copied before it runs."""

    block_ids: list[int]
    num_published_blocks: int
    published: Prefix
    copy: tuple[int, int] | None


class BlockTables:
    """Moves blocks between the pool, the tables of bound sequences, and the prefix cache.

    A block may be in several tables only if it is full and was acknowledged; a block being written
    is in one. Tables only grow at the end.
    """

    def __init__(self, cache: CacheInfo, *, enable_prefix_caching: bool) -> None:
        self.block_size = cache.block_size
        self.pool = BlockPool(cache.num_blocks)
        self.prefix_cache = PrefixCache()
        self.promises = PrefixPromises()
        self.enable_prefix_caching = enable_prefix_caching

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cached_prefix(self, sequence: Sequence, namespace: CacheNamespace) -> list[CachedBlock]:
        """The cached blocks that a sequence would start with."""
        if not self.enable_prefix_caching:
            return []
        max_num_hits = sequence.num_reusable_tokens // self.block_size
        return self.prefix_cache.match(self._chain(sequence, namespace), sequence.token_ids, max_num_hits)

    def is_promised(self, sequence: Sequence, namespace: CacheNamespace, num_hits: int) -> bool:
        """Whether the block after its cached ones is being computed for another sequence."""
        if not self.enable_prefix_caching or (num_hits + 1) * self.block_size > sequence.num_reusable_tokens:
            return False
        chain = self._chain(sequence, namespace)
        chain.extend(sequence.token_ids, num_hits + 1)
        return chain.hashes[num_hits] in self.promises

    def offer(self, sequence: Sequence, hits: list[CachedBlock], fork: Fork | None) -> Offer:
        """Blocks for all known tokens of a sequence, those of its cached prefix or its sibling first."""
        num_blocks = self.num_blocks_for(len(sequence.token_ids))
        shared_block_ids, copied_block_id = [hit.block_id for hit in hits], None
        num_computed_tokens = len(hits) * self.block_size
        if fork is not None and fork.num_tokens <= num_computed_tokens:
            fork = None
        if fork is not None:
            num_full_blocks, num_rest_tokens = divmod(fork.num_tokens, self.block_size)
            shared_block_ids = fork.binding.block_ids[:num_full_blocks]
            copied_block_id = fork.binding.block_ids[num_full_blocks] if num_rest_tokens else None
            num_computed_tokens = fork.num_tokens
        return Offer(
            hits=hits,
            shared_block_ids=shared_block_ids,
            copied_block_id=copied_block_id,
            fork=fork,
            num_computed_tokens=num_computed_tokens,
            num_new_blocks=num_blocks - len(shared_block_ids),
            num_free_shared=sum(self.pool.ref_count(block_id) == 0 for block_id in shared_block_ids),
        )

    def attach(self, sequence: Sequence, namespace: CacheNamespace, offer: Offer) -> AttachedBlocks:
        """Takes what was offered; there must be as many free blocks."""
        # Shared ones first: a free one would otherwise be among those taken.
        for block_id in offer.shared_block_ids:
            self.pool.share(block_id)
        last = offer.shared_block_ids[-1] if offer.shared_block_ids else -1
        new_block_ids = self._take(offer.num_new_blocks, after=last)
        if self.enable_prefix_caching:
            self._chain(sequence, namespace).extend(sequence.token_ids, len(sequence.token_ids) // self.block_size)
        copied = offer.copied_block_id
        return AttachedBlocks(
            block_ids=offer.shared_block_ids + new_block_ids,
            num_published_blocks=len(offer.hits),
            published=offer.hits[-1] if offer.hits else namespace,
            copy=None if copied is None else (copied, new_block_ids[0]),
        )

    def promise(self, binding: Binding) -> None:
        """Tells that the full blocks of its known tokens will be published."""
        self.promises.make(self._promised_hashes(binding))

    def grow(self, binding: Binding) -> int | None:
        """Appends a block to a table and returns its id; None if no block is free."""
        if self.pool.num_free == 0:
            return None
        (block_id,) = self._take(1, after=binding.block_ids[-1])
        binding.block_ids.append(block_id)
        return block_id

    def publish(self, binding: Binding, num_computed_tokens: int) -> None:
        """Offers the blocks that acknowledged runs have filled to the prefix cache, generated tokens too."""
        sequence, block_size = binding.sequence, self.block_size
        num_full_blocks = num_computed_tokens // block_size
        if not self.enable_prefix_caching or num_full_blocks <= binding.num_published_blocks:
            return
        chain = sequence.hash_chains[block_size]
        chain.extend(sequence.token_ids, num_full_blocks)
        first = binding.num_published_blocks
        self.promises.settle(chain.hashes[first : min(num_full_blocks, binding.num_promised_blocks)])
        for index in range(first, num_full_blocks):
            start = index * block_size
            binding.published = self.prefix_cache.publish(
                binding.block_ids[index],
                chain.hashes[index],
                binding.published,
                sequence.token_ids[start : start + block_size].tobytes(),
            )
        binding.num_published_blocks = num_full_blocks

    def release(self, binding: Binding) -> None:
        """Gives a table's blocks back. Those with cached content keep it until they are taken again."""
        self.break_promises(binding)
        # Last block first, so that of one prefix the tail is evicted before what it hangs on.
        for block_id in reversed(binding.block_ids):
            self.pool.release(block_id, worth_keeping=block_id in self.prefix_cache)
        binding.block_ids.clear()

    def break_promises(self, binding: Binding) -> None:
        """It will publish nothing more soon: who waits for its prefix shall compute it."""
        self.promises.settle(self._promised_hashes(binding))
        binding.num_promised_blocks = binding.num_published_blocks

    def distrust(self, binding: Binding) -> None:
        """After a failed run: no later request shall read the KV that this one read."""
        for block_id in binding.block_ids:
            self.prefix_cache.forget(block_id)

    def _promised_hashes(self, binding: Binding) -> list[bytes]:
        chain = binding.sequence.hash_chains.get(self.block_size)
        if chain is None:
            return []
        return chain.hashes[binding.num_published_blocks : binding.num_promised_blocks]

    def _take(self, num_blocks: int, *, after: int) -> list[int]:
        block_ids = self.pool.take(num_blocks, after)
        for block_id in block_ids:
            self.prefix_cache.forget(block_id)
        return block_ids

    def _chain(self, sequence: Sequence, namespace: CacheNamespace) -> HashChain:
        chain = sequence.hash_chains.get(self.block_size)
        if chain is None:
            # One for each size of blocks among the workers.
            chain = sequence.hash_chains[self.block_size] = HashChain(namespace, self.block_size)
        return chain
