"""What does one rank hold? Its part of the model, all of it if it is alone, and of each KV block."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import torch

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.model_files import ModelFiles
from worker_svc.checkpoint import Checkpoint
from worker_svc.cpu_kernels import Kernels, choose_kernels
from worker_svc.device import dtype_name, resolve_device
from worker_svc.drafting.draft_model import DraftModel, load_draft_model
from worker_svc.host import usable_cores
from worker_svc.kv_cache import KvCache, allocate_kv_cache, block_bytes, count_blocks
from worker_svc.loader import Progress, load_model
from worker_svc.models.model import Model
from worker_svc.parallel.group import Group
from worker_svc.parallel.layout import Layout, check_layout
from worker_svc.parallel.leader import LeaderModel
from worker_svc.parallel.ranks import ALONE, RankGroup
from worker_svc.parallel.sharded_weights import shard_checkpoint
from worker_svc.quantization import kept_types
from worker_svc.rehearsal import measure_free_gpu_bytes

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelPart:
    """What one rank holds: all of the model if it is alone. At rank 0 of several, `model` and `cache` lead the others'.
    `weights_bytes` is of all ranks together, `kernels` for people, `longest` the context that the model is prepared
    for."""

    model: Model
    # `model`, where it leads others.
    leader: LeaderModel | None
    draft: DraftModel | None
    cache: KvCache
    weights_bytes: int
    device: torch.device
    dtype: torch.dtype
    is_quantized: bool
    kernels: str
    longest: int


def load_part(
    config: WorkerConfig, files: ModelFiles, checkpoint: Checkpoint, progress: Progress, group: Group | None
) -> ModelPart:
    """Loads this rank's part of the model and allocates its KV memory. Raises ModelLoadError or InvalidConfig."""
    num_local_ranks = 1 if group is None else group.place.num_local_ranks
    num_threads = config.num_threads or max(1, usable_cores() // num_local_ranks)
    torch.set_num_threads(num_threads)
    device = resolve_device(config.device, 0 if group is None else group.place.local_rank)
    longest = _longest_context(checkpoint, config.max_model_len)
    layout = Layout() if group is None else group.layout
    check_layout(layout, checkpoint.config)
    kernels = choose_kernels(config, checkpoint, device, num_threads, layout.num_ranks)
    ggml_types = kept_types(config, checkpoint, kernels.cpu_pool)
    name = f"{kernels.name}, weights quantized as in the file" if ggml_types else kernels.name
    if group is not None and group.is_leader and device.type == "cpu":
        log.warning("PyTorch computes instead of the CPU kernels", reason="these run a whole model, not a rank's part")
    log.info("the model runs", device=device.type, dtype=dtype_name(kernels.dtype), kernels=name)
    ranks = None if group is None else group.ranks(checkpoint.config.vocab_size)
    model, weights_bytes = load_model(
        shard_checkpoint(checkpoint, layout),
        num_positions=longest,
        dtype=kernels.dtype,
        device=device,
        cpu_pool=kernels.cpu_pool,
        ggml_types=ggml_types,
        progress=progress,
        ranks=ranks or ALONE,
    )
    # Rank 0 guesses for all.
    guesses = group is None or group.is_leader
    draft = load_draft_model(config, files, model, checkpoint.config, kernels, device) if guesses else None
    if kernels.cpu_pool is not None:
        # The library's threads have the cores. PyTorch's would keep one from them for a while after each operation.
        torch.set_num_threads(1)
    cache = _make_cache(config, model, draft, kernels, device, num_local_ranks, ranks)
    leader: LeaderModel | None = None
    if group is not None and ranks is not None:
        log.info("this rank's part", rank=layout.rank, stage=layout.stage, weights_bytes=weights_bytes)
        weights_bytes = sum(ranks.numbers(weights_bytes))
        if group.is_leader:
            leader, cache = group.lead(model, cache, ranks)
    return ModelPart(
        model=leader or model,
        leader=leader,
        draft=draft,
        cache=cache,
        weights_bytes=weights_bytes + (0 if draft is None else draft.weights_bytes),
        device=device,
        dtype=kernels.dtype,
        is_quantized=bool(ggml_types),
        kernels=name,
        longest=longest,
    )


def _longest_context(checkpoint: Checkpoint, requested: int | None) -> int:
    """The context length to prepare for. Raises InvalidConfig if the model cannot have it."""
    longest = checkpoint.config.max_position_embeddings
    if requested is not None and requested > longest:
        raise InvalidConfig(f"--max-model-len {requested} is more than the model's {longest} positions")
    context = requested or longest
    window = checkpoint.sliding_window
    if window is not None and context > window:
        raise InvalidConfig(
            f"the model attends to a sliding window of {window} tokens, which is not supported beyond that length; "
            f"use --max-model-len {window} or less"
        )
    return context


def _make_cache(
    config: WorkerConfig,
    model: Model,
    draft: DraftModel | None,
    kernels: Kernels,
    device: torch.device,
    num_local_ranks: int,
    ranks: RankGroup | None,
) -> KvCache:
    free_gpu_bytes = None
    if device.type == "cuda":
        free_gpu_bytes = measure_free_gpu_bytes(
            model,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            block_size=config.block_size,
            dtype=kernels.dtype,
            device=device,
        )
        if draft is not None:
            free_gpu_bytes -= draft.step_bytes(config.max_num_batched_tokens, kernels.dtype)
    draft_kv = None if draft is None else draft.kv
    with_kv = (model.config,) if draft_kv is None else (model.config, draft_kv)
    bytes_per_block = block_bytes(with_kv, config.block_size, kernels.dtype)
    num_blocks = count_blocks(config, bytes_per_block, free_gpu_bytes, num_local_ranks=num_local_ranks)
    if ranks is not None:
        # A block is one at all of them.
        num_blocks = min(ranks.numbers(num_blocks))
    return allocate_kv_cache(
        model.config,
        num_blocks=num_blocks,
        block_size=config.block_size,
        dtype=kernels.dtype,
        device=device,
        draft=draft_kv,
        cpu_library=None if kernels.cpu_pool is None else kernels.cpu_pool.library,
    )
