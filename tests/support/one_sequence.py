"""Steps of a single sequence, whose blocks are those of the pool in order."""

import torch

from pageloom_kernels import AttentionBatch


def one_run(start: int, end: int, *, block_size: int = 32) -> AttentionBatch:
    """A step that computes the tokens from `start` to before `end`."""
    positions = torch.arange(start, end)
    return AttentionBatch(
        block_tables=torch.arange(-(-end // block_size), dtype=torch.int32)[None],
        seq_lens=torch.tensor([end], dtype=torch.int32),
        query_start=torch.tensor([0, end - start], dtype=torch.int32),
        num_decodes=int(end - start == 1),
        max_query_len=end - start,
        max_seq_len=end,
        positions=positions,
        slot_mapping=positions,
    )
