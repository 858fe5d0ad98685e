"""How many KV blocks fit, how long a context do they hold, and where are they? The block tensors of a worker."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.plan import CacheInfo
from pageloom_kernels.cpu.library import CpuLibrary
from pageloom_kernels.cpu.memory_ahead import MemoryAhead
from worker_svc.host import available_memory_bytes
from worker_svc.models.config import LlamaConfig

_MOST_CPU_BYTES = 4 << 30
_CPU_MEMORY_FRACTION = 0.25
# Of all layers together: about ten thousand tokens of a small model.
_RESIDENT_AHEAD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KvCache:
    """The pool. `layers` are views of one allocation, each [blocks, 2, kv_heads, block_size, head_dim].

    A block has room for its tokens' keys and values in the model, and in the draft model if that has its own.
    """

    info: CacheInfo
    blocks: Tensor  # [layers, blocks, 2, kv_heads, block_size, head_dim]
    layers: tuple[Tensor, ...]
    draft_blocks: Tensor | None  # the same of the draft model
    ahead: MemoryAhead | None

    @property
    def draft_layers(self) -> tuple[Tensor, ...]:
        """As `layers`, of the draft model."""
        return () if self.draft_blocks is None else self.draft_blocks.unbind(0)

    def used(self, num_blocks: int) -> None:
        """No step used a block from `num_blocks` on."""
        if self.ahead is not None:
            self.ahead.used(self.blocks[0, 0].nbytes * num_blocks)

    def copy(self, source_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> None:
        """Copies whole blocks, in all layers of both models; no target may be a source."""
        if source_ids:
            sources = torch.tensor(source_ids, device=self.blocks.device)
            targets = torch.tensor(target_ids, device=self.blocks.device)
            for blocks in (self.blocks, self.draft_blocks):
                if blocks is not None:
                    blocks[:, targets] = blocks[:, sources]


def allocate_kv_cache(
    model: LlamaConfig,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    draft: LlamaConfig | None = None,
    cpu_library: CpuLibrary | None = None,
) -> KvCache:
    """Zeroed blocks of `model` and, if it has its own, of the `draft` model. On a CPU, memory becomes resident when a
    block first uses it, with the library a little before."""
    num_bytes = num_blocks * block_bytes((model,) if draft is None else (model, draft), block_size, dtype)
    try:
        blocks = _zeros(model, num_blocks, block_size, dtype, device)
        draft_blocks = None if draft is None else _zeros(draft, num_blocks, block_size, dtype, device)
    except (RuntimeError, MemoryError):
        raise InvalidConfig(
            f"{num_bytes} bytes for {num_blocks} KV blocks cannot be allocated; "
            "lower --num-gpu-blocks-override, --kv-cache-memory-bytes or --gpu-memory-utilization"
        ) from None
    info = CacheInfo(block_size=block_size, num_blocks=num_blocks, kv_bytes=num_bytes)
    ahead = None if cpu_library is None else MemoryAhead(cpu_library, blocks, _RESIDENT_AHEAD_BYTES)
    return KvCache(info=info, blocks=blocks, layers=blocks.unbind(0), draft_blocks=draft_blocks, ahead=ahead)


def _zeros(model: LlamaConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[layers, blocks, 2, kv_heads, block_size, head_dim]."""
    shape = (model.num_layers, num_blocks, 2, model.num_kv_heads, block_size, model.head_dim)
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Unlike torch.zeros, np.zeros takes zero pages from the system and touches none.
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def block_bytes(models: Iterable[LlamaConfig], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers of all models that keep something in it."""
    values = sum(model.num_layers * 2 * model.num_kv_heads * block_size * model.head_dim for model in models)
    return values * dtype.itemsize


def count_blocks(
    config: WorkerConfig, bytes_per_block: int, free_gpu_bytes: int | None, *, num_local_ranks: int = 1
) -> int:
    """Blocks by `num_blocks`, else `kv_cache_memory_bytes`, else the device's memory.

    `free_gpu_bytes` is what --gpu-memory-utilization leaves beside weights and activations; None on a
    CPU, where the ranks on this host together take a quarter of the available memory, at most 4 GiB. Raises
    InvalidConfig if not even one block fits.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    budget_bytes = config.kv_cache_memory_bytes
    if budget_bytes is None:
        budget_bytes = free_gpu_bytes
    if budget_bytes is None:
        budget_bytes = min(_MOST_CPU_BYTES, int(available_memory_bytes() * _CPU_MEMORY_FRACTION)) // num_local_ranks
    if budget_bytes < bytes_per_block:
        raise InvalidConfig(
            f"{max(budget_bytes, 0)} bytes of memory are left for the KV cache, less than the {bytes_per_block} of one "
            "block; raise --kv-cache-memory-bytes or --gpu-memory-utilization"
        )
    return budget_bytes // bytes_per_block


def fit_context(requested: int | None, longest: int, num_blocks: int, block_size: int) -> int:
    """The context length: what was requested, otherwise as much of `longest` as all blocks together hold.

    Raises InvalidConfig if a requested length does not fit.
    """
    held = num_blocks * block_size
    if requested is not None and requested > held:
        raise InvalidConfig(
            f"--max-model-len {requested} does not fit: the KV cache has {num_blocks} blocks of {block_size} tokens; "
            f"lower it to {held}, or raise --num-gpu-blocks-override, --kv-cache-memory-bytes or "
            "--gpu-memory-utilization"
        )
    return min(requested or longest, held)
