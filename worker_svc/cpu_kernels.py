"""Which kernels does the model run on, and so in which dtype: the C++ library's, PyTorch's, or Triton's?"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import torch

from pageloom.config import CpuKernels, WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom_kernels.cpu.library import NoCpuLibrary, load_cpu_library
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.checkpoint import Checkpoint
from worker_svc.device import dtype_name, resolve_dtype
from worker_svc.models.cpu_llama import check_shape

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """`name` is for people. With `cpu_pool`, the threads of the library, the model runs there."""

    name: str
    dtype: torch.dtype
    cpu_pool: ThreadPool | None = None


def choose_kernels(
    config: WorkerConfig, checkpoint: Checkpoint, device: torch.device, num_threads: int, num_ranks: int = 1
) -> Kernels:
    """Where PyTorch takes the place of the library, the log says why. Raises InvalidConfig if the library's kernels,
    the only ones that are batch-invariant, are required and cannot run."""
    kernels = _choose(config, checkpoint, device, num_threads, num_ranks)
    if config.batch_invariant and kernels.cpu_pool is None:
        raise InvalidConfig(
            f"--batch-invariant needs the C++ kernels, which compute in bfloat16 on a CPU; here the model would run on "
            f"{kernels.name} in {dtype_name(kernels.dtype)}"
        )
    return kernels


def _choose(
    config: WorkerConfig, checkpoint: Checkpoint, device: torch.device, num_threads: int, num_ranks: int
) -> Kernels:
    stored = checkpoint.weights.dtype
    plain_dtype = resolve_dtype(config.dtype, stored, device, has_library=False)
    if device.type == "cuda":
        return Kernels(name="Triton", dtype=plain_dtype)
    if num_ranks > 1:
        # The library's steps are those of whole models: nothing in them waits for another rank.
        return Kernels(name=f"PyTorch, {num_ranks} ranks", dtype=plain_dtype)
    library_dtype = resolve_dtype(config.dtype, stored, device, has_library=True)
    if config.cpu_kernels == CpuKernels.torch or library_dtype != torch.bfloat16:
        return Kernels(name="PyTorch", dtype=plain_dtype)
    try:
        library = load_cpu_library()
        check_shape(checkpoint.config, config.block_size)
        pool = ThreadPool(library, num_threads)
    except (NoCpuLibrary, MemoryError) as reason:
        log.warning("PyTorch computes instead of the CPU kernels, several times slower", reason=str(reason))
        return Kernels(name="PyTorch", dtype=plain_dtype)
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    return Kernels(name=f"C++ for {library.instruction_set}, {threads}", dtype=library_dtype, cpu_pool=pool)
