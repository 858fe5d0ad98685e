"""Runs of the model on made-up tokens that leave no trace in the KV blocks: to warm up, and to measure memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pageloom_kernels import AttentionBatch
from worker_svc.kv_cache import allocate_kv_cache
from worker_svc.models.model import Model


@torch.inference_mode()
def rehearse(
    model: Model, kv_caches: Sequence[Tensor], num_tokens: int, num_outputs: int, device: torch.device
) -> Tensor:
    """Hidden states [num_outputs, hidden] of the first tokens of a sequence of zeros, whose K and V are not kept."""
    batch = rehearsal_batch(num_tokens, kv_caches[0].shape[3], model.num_positions, device)
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    return model.forward(token_ids, batch, kv_caches, torch.arange(num_outputs, device=device))


def rehearsal_batch(num_tokens: int, block_size: int, num_positions: int, device: torch.device) -> AttentionBatch:
    """Of the first tokens of one sequence."""
    return AttentionBatch(
        block_tables=torch.zeros(1, -(-num_tokens // block_size), dtype=torch.int32, device=device),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32, device=device),
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        num_decodes=int(num_tokens == 1),
        max_query_len=num_tokens,
        max_seq_len=num_tokens,
        # Positions beyond the context have no entry in the RoPE tables.
        positions=torch.arange(num_tokens, device=device).clamp(max=num_positions - 1),
        slot_mapping=torch.full((num_tokens,), -1, device=device),
    )


def measure_free_gpu_bytes(
    model: Model,
    *,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """What the largest step leaves of `gpu_memory_utilization` of the GPU, beside weights and other processes."""
    cache = allocate_kv_cache(model.config, num_blocks=1, block_size=block_size, dtype=dtype, device=device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_allocated(device)
    with torch.inference_mode():
        hidden = rehearse(model, cache.layers, max_num_batched_tokens, max_num_seqs, device)
        # The sampler's largest tensors: probabilities, and their sorted copy with its indices.
        model.logits(hidden).float().softmax(dim=-1).sort(dim=-1)
    step_bytes = torch.cuda.max_memory_allocated(device) - before_bytes
    del hidden
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return int(total_bytes * gpu_memory_utilization) - (total_bytes - free_bytes) - step_bytes
