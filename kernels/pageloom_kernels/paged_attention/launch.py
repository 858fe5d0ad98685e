"""Paged attention on a GPU: decodes and extends of one step, each by the kernel made for it."""

import math

import torch
from torch import Tensor

from pageloom_kernels.paged_attention.batch import AttentionBatch
from pageloom_kernels.paged_attention.decode_kernel import decode
from pageloom_kernels.paged_attention.prefill_kernel import prefill
from pageloom_kernels.paged_attention.tuning import Gpu, decode_tuning, prefill_tuning


def paged_attention(query: Tensor, kv_cache: Tensor, batch: AttentionBatch, *, scale: float, gpu: Gpu) -> Tensor:
    # One kernel for both would be slower than either: the compiler pipelines their loops differently.
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    head_dim, itemsize = query.shape[2], query.itemsize
    scale_log2 = scale * math.log2(math.e)
    if batch.num_decodes:
        decode(
            query,
            kv_cache,
            batch,
            scale_log2=scale_log2,
            tuning=decode_tuning(gpu, head_dim=head_dim, itemsize=itemsize),
            output=output,
        )
    if batch.num_decodes < batch.seq_lens.shape[0]:
        rows = batch.max_query_len * (query.shape[1] // kv_cache.shape[2])
        prefill(
            query,
            kv_cache,
            batch,
            scale_log2=scale_log2,
            tuning=prefill_tuning(gpu, head_dim=head_dim, itemsize=itemsize, rows=rows),
            output=output,
        )
    return output
