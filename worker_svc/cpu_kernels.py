"""Which kernels does the model run on: those of the C++ library, PyTorch's, or Triton's?"""

from __future__ import annotations

import structlog
import torch

from pageloom.config import CpuKernels, WorkerConfig
from pageloom_kernels.cpu.library import NoCpuLibrary, load_cpu_library
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.models.config import LlamaConfig
from worker_svc.models.cpu_llama import check_shape

log = structlog.get_logger()


def choose_kernels(
    config: WorkerConfig, model: LlamaConfig, dtype: torch.dtype, device: torch.device, num_threads: int
) -> tuple[ThreadPool | None, str]:
    """The library's threads if the model is to run in it, and what to call the kernels.

    Where PyTorch takes the place of the library, the log says why.
    """
    if device.type == "cuda":
        return None, "Triton"
    if config.cpu_kernels == CpuKernels.torch or dtype != torch.bfloat16:
        return None, "PyTorch"
    try:
        library = load_cpu_library()
        check_shape(model, config.block_size)
        pool = ThreadPool(library, num_threads)
    except (NoCpuLibrary, MemoryError) as reason:
        log.warning("PyTorch computes instead of the CPU kernels, several times slower", reason=str(reason))
        return None, "PyTorch"
    return pool, f"C++ for {library.instruction_set}, {num_threads} threads"
