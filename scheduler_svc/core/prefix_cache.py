"""Which block already holds the KV of a prefix? Blocks by chained hash, verified by their token ids."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNamespace:
    """What must be equal, besides the tokens, for two prefixes to have the same KV and to share it."""

    salt: str
    model_digest: str
    kv_dtype: str
    adapter: str = ""

    def root_hash(self) -> bytes:
        """The parent of a prefix's first block. Lengths go before the texts, so no two namespaces join alike."""
        digest = hashlib.sha256(b"pageloom.kv.1")
        for text in (self.salt, self.model_digest, self.adapter, self.kv_dtype):
            encoded = text.encode()
            digest.update(struct.pack("<I", len(encoded)) + encoded)
        return digest.digest()


# Token ids of a sequence: uint32, so that the bytes of a block are a slice away.
TokenIds: TypeAlias = "array[int]"


def token_array(token_ids: Iterable[int] = ()) -> TokenIds:
    return array("I", token_ids)


def chained_hash(parent_hash: bytes, tokens: bytes) -> bytes:
    """SHA-256 of the parent's hash and the block's tokens as uint32, in the machine's byte order."""
    return hashlib.sha256(parent_hash + tokens).digest()


@dataclass(slots=True, eq=False)
class HashChain:
    """The hashes of a sequence's full blocks, computed once and extended as tokens become known."""

    namespace: CacheNamespace
    block_size: int
    hashes: list[bytes] = field(default_factory=list)

    def extend(self, token_ids: TokenIds, num_blocks: int) -> None:
        """Makes sure of the hashes of the first `num_blocks` blocks of `token_ids`."""
        if len(self.hashes) >= num_blocks:
            return
        parent_hash = self.hashes[-1] if self.hashes else self.namespace.root_hash()
        for index in range(len(self.hashes), num_blocks):
            start = index * self.block_size
            parent_hash = chained_hash(parent_hash, token_ids[start : start + self.block_size].tobytes())
            self.hashes.append(parent_hash)


# Not frozen, which would triple what it costs to make one; nobody writes to it.
@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block: its tokens (uint32), and what comes before them. Evicted parents stay readable from here."""

    block_id: int
    block_hash: bytes
    tokens: bytes
    parent: Prefix

    def holds(self, parent: Prefix, tokens: bytes) -> bool:
        """Whether this is the KV of exactly these tokens after exactly that prefix; trusts no hash."""
        return self.tokens == tokens and _same_prefix(self.parent, parent)


Prefix = CachedBlock | CacheNamespace


class PrefixCache:
    """At most one block for each hash and one hash for each block. Who owns the blocks is not its business."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def match(self, chain: HashChain, token_ids: TokenIds, num_blocks: int) -> list[CachedBlock]:
        """The longest run of cached blocks, from the first on, among the first `num_blocks` of `token_ids`."""
        chain.extend(token_ids, num_blocks)
        hits: list[CachedBlock] = []
        parent: Prefix = chain.namespace
        for index in range(num_blocks):
            cached = self._by_hash.get(chain.hashes[index])
            start = index * chain.block_size
            if cached is None or not cached.holds(parent, token_ids[start : start + chain.block_size].tobytes()):
                break
            hits.append(cached)
            parent = cached
        return hits

    def publish(self, block_id: int, block_hash: bytes, parent: Prefix, tokens: bytes) -> CachedBlock:
        """Makes a full block, whose write was acknowledged, findable; returns the parent of the next block.

        Of two blocks with the same content the first stays: block tables are append-only, so the
        second cannot be merged into it.
        """
        cached = self._by_hash.get(block_hash)
        if cached is not None and cached.holds(parent, tokens):
            return cached
        published = CachedBlock(block_id, block_hash, tokens, parent)
        if cached is None:
            self._by_hash[block_hash] = self._by_block[block_id] = published
        return published

    def forget(self, block_id: int) -> None:
        """Before a block is written anew, or when its content is in doubt."""
        cached = self._by_block.pop(block_id, None)
        if cached is not None:
            del self._by_hash[cached.block_hash]

    def blocks(self) -> tuple[CachedBlock, ...]:
        return tuple(self._by_block.values())


def _same_prefix(one: Prefix, other: Prefix) -> bool:
    # Nearly always the same object. Not so when a block was evicted and another with its content was
    # published later; then the walk back ends where the two meet.
    while one is not other:
        if isinstance(one, CacheNamespace) or isinstance(other, CacheNamespace):
            return one == other
        if one.tokens != other.tokens:
            return False
        one, other = one.parent, other.parent
    return True
