"""What attention must know about a step beyond the tensors it works on."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBatch:
    """One step's sequences: the `num_decodes` with a single query token first, then the extends.

    A value: its tensors must not be written while it is in use, because implementations keep what they derive from it
    for the layers that follow. So two batches are equal only if they are the same object, and a batch whose buffers a
    CUDA graph rewrites between replays must be constructed inside that graph's capture.
    """

    block_tables: Tensor  # [seqs, max_blocks] int32; beyond a sequence's blocks: any valid block id
    seq_lens: Tensor  # [seqs] int32, tokens in context including this step's
    query_start: Tensor  # [seqs + 1] int32, row of each sequence's first query token; the last is the number of tokens
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    positions: Tensor  # [tokens] int64, absolute
    slot_mapping: Tensor  # [tokens] int64, block_id * block_size + offset; negative: the token's K and V are not kept
