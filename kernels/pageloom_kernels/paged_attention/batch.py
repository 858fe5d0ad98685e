"""What attention must know about a step beyond the tensors it works on."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionBatch:
    """One step's sequences: the `num_decodes` with a single query token first, then the extends.

    A value: its tensors must not be written while it is in use, because implementations keep what they derive from it
    for the layers that follow. So two batches are equal only if they are the same object, and a batch whose buffers a
    CUDA graph rewrites between replays must be constructed inside that graph's capture.

    Raises:
        ValueError: a tensor has another dtype or shape than stated; what the tensors hold is not looked at.
    """

    block_tables: Tensor  # [seqs, max_blocks] int32; beyond a sequence's blocks: any valid block id
    seq_lens: Tensor  # [seqs] int32, tokens in context including this step's
    query_start: Tensor  # [seqs + 1] int32, row of each sequence's first query token; the last is the number of tokens
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    positions: Tensor  # [tokens] int64, absolute
    slot_mapping: Tensor  # [tokens] int64, block_id * block_size + offset; negative: the token's K and V are not kept

    def __post_init__(self) -> None:
        num_seqs, num_tokens = self.seq_lens.shape[0], self.positions.shape[0]
        for name, dtype, shape in (
            ("block_tables", torch.int32, (num_seqs, self.block_tables.shape[-1])),
            ("seq_lens", torch.int32, (num_seqs,)),
            ("query_start", torch.int32, (num_seqs + 1,)),
            ("positions", torch.int64, (num_tokens,)),
            ("slot_mapping", torch.int64, (num_tokens,)),
        ):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != dtype or tensor.shape != shape or tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name} must be a contiguous {dtype} of shape {list(shape)} for {num_seqs} sequences and "
                    f"{num_tokens} tokens, got {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}"
                )
        if not 0 <= self.num_decodes <= num_seqs:
            raise ValueError(f"num_decodes must be between 0 and the {num_seqs} sequences, got {self.num_decodes}")
