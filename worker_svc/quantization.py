"""Do quantized weights stay as they are in their file, and which can?"""

from __future__ import annotations

from collections.abc import Mapping

from pageloom.config import Quantization, WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.checkpoint import Checkpoint


def kept_types(config: WorkerConfig, checkpoint: Checkpoint, cpu_pool: ThreadPool | None) -> Mapping[str, int]:
    """The ggml types of the tensors that are to stay in their blocks, by name; all others become --dtype.

    Raises InvalidConfig if that was asked for and is not possible.
    """
    if config.quantization == Quantization.none:
        return {}
    if checkpoint.quantized is None:
        obstacle = "the model is not a GGUF file with weights of the types Q4_0, Q4_1, Q8_0, Q4_K or Q6_K"
    elif cpu_pool is None:
        obstacle = "only the C++ kernels multiply them, and those are for --dtype bfloat16 (or auto) on a CPU"
    else:
        return checkpoint.quantized.ggml_types
    if config.quantization == Quantization.gguf:
        raise InvalidConfig(f"--quantization gguf: the weights cannot stay quantized: {obstacle}")
    return {}
