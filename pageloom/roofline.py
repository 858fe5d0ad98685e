"""How long would a step take on hardware that is not here? A roofline model of (GPU, model, tensor parallelism).

Of each part of a step it takes the larger of the time to compute and the time to move bytes, and adds them up.
It knows nothing of kernels, so its figures are what good kernels reach, not what any engine was measured at.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pageloom.errors import InvalidConfig
from pageloom.hardware_profiles import GPUS, MODELS, Gpu, ModelProfile
from pageloom.plan import CacheInfo

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# What a worker of constant step time claims to be: the default model, whose text a gateway can show.
_FIXED_STEP_MODEL = "smollm2-135m"
_FIXED_STEP_KV_TOKENS = 262_144
_LONGEST_FIXED_STEP_S = 3600.0


class StepShape(NamedTuple):
    """What decides a step's time. A decode is a run of one token; anything longer is a prefill.

    A run of T tokens after C computed ones reads the KV of C + T tokens and has T·C + T(T+1)/2 pairs of a query
    and a key that it may see.
    """

    num_tokens: int
    num_draws: int
    decode_kv_tokens: int
    prefill_kv_tokens: int
    prefill_pairs: int


class StepTimer(Protocol):
    """Something that says how long steps take, and which model it stands for."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> ModelProfile: ...

    def step_time_s(self, shape: StepShape) -> float: ...

    def num_kv_tokens(self, gpu_memory_utilization: float) -> int:
        """Tokens whose KV fits beside the weights. Raises InvalidConfig if the weights do not fit."""
        ...


class Roofline:
    """One model on `tensor_parallel_size` GPUs of a kind, in bfloat16.

    - Linear layers: 2 FLOP for each parameter and token, against one read of the weights.
    - LM head: the same for each row that draws a token.
    - Decode attention: one read of the KV of every decode's context; 4 FLOP for each pair and element of a head are
      an intensity far below any GPU's ridge.
    - Prefill attention: those 4 FLOP, against one read of the KV.
    - With several GPUs each does its part of all that, and two ring all-reduces of the hidden states follow
      in every layer (Megatron-LM, Shoeybi et al. 2019): 2(n-1)/n of their bytes over the link, and a latency each.
    - A constant for each step: launches, sampling, and the host.
    """

    def __init__(self, gpu: Gpu, model: ModelProfile, tensor_parallel_size: int = 1) -> None:
        """Raises InvalidConfig if the model's heads cannot be split so, or the GPUs have no link."""
        _check_tensor_parallel(gpu, model, tensor_parallel_size)
        self.gpu = gpu
        self.model = model
        self.tensor_parallel_size = tensor_parallel_size
        self.name = f"{gpu.name}:{model.name}" + (f":tp{tensor_parallel_size}" if tensor_parallel_size > 1 else "")
        # Seconds for one unit of each kind of work, so that a step costs a few multiplications.
        matmul_flops = gpu.flops * gpu.matmul_efficiency * tensor_parallel_size
        attention_flops = gpu.flops * gpu.prefill_attention_efficiency * tensor_parallel_size
        bandwidth = gpu.bandwidth * gpu.copy_efficiency * tensor_parallel_size
        decode_bandwidth = gpu.bandwidth * gpu.decode_attention_efficiency * tensor_parallel_size
        self._linear_token_s = 2 * model.num_linear_params / matmul_flops
        self._linear_read_s = model.num_linear_params * model.dtype_bytes / bandwidth
        self._head_row_s = 2 * model.num_head_params / matmul_flops
        self._head_read_s = model.num_head_params * model.dtype_bytes / bandwidth
        self._decode_kv_token_s = model.kv_bytes_per_token / decode_bandwidth
        self._prefill_kv_token_s = model.kv_bytes_per_token / bandwidth
        self._prefill_pair_s = 4 * model.num_heads * model.head_dim * model.num_layers / attention_flops
        self._reduce_token_s, self._reduce_s = self._all_reduce_costs()

    def step_time_s(self, shape: StepShape) -> float:
        linear_s = max(shape.num_tokens * self._linear_token_s, self._linear_read_s)
        head_s = max(shape.num_draws * self._head_row_s, self._head_read_s) if shape.num_draws else 0.0
        decode_s = shape.decode_kv_tokens * self._decode_kv_token_s
        prefill_s = max(shape.prefill_pairs * self._prefill_pair_s, shape.prefill_kv_tokens * self._prefill_kv_token_s)
        reduce_s = shape.num_tokens * self._reduce_token_s + self._reduce_s
        return linear_s + head_s + decode_s + prefill_s + reduce_s + self.gpu.step_overhead_s

    def num_kv_tokens(self, gpu_memory_utilization: float) -> int:
        """What `gpu_memory_utilization` of the memory leaves beside the weights; the rest is for activations."""
        total_bytes = self.gpu.memory_bytes * self.tensor_parallel_size
        kv_bytes = int(total_bytes * gpu_memory_utilization) - self.model.weights_bytes
        if kv_bytes < self.model.kv_bytes_per_token:
            raise InvalidConfig(
                f"{self.name}: the weights of {self.model.weights_bytes / 1e9:.1f} GB leave no KV memory in "
                f"{gpu_memory_utilization:g} of {total_bytes / 1e9:.1f} GB; take more GPUs or a smaller model"
            )
        return kv_bytes // self.model.kv_bytes_per_token

    def _all_reduce_costs(self) -> tuple[float, float]:
        """Seconds for each token, and for each step."""
        if self.tensor_parallel_size == 1:
            return 0.0, 0.0
        share = 2 * (self.tensor_parallel_size - 1) / self.tensor_parallel_size
        num_reduces = 2 * self.model.num_layers
        token_bytes = self.model.hidden_size * self.model.dtype_bytes
        token_s = num_reduces * share * token_bytes / (self.gpu.link_bandwidth * self.gpu.copy_efficiency)
        return token_s, num_reduces * self.gpu.link_latency_s


@dataclass(frozen=True, slots=True)
class FixedStepTime:
    """Every step takes the same time: for measuring what surrounds the steps."""

    name: str
    duration_s: float
    model: ModelProfile

    def step_time_s(self, shape: StepShape) -> float:
        return self.duration_s

    def num_kv_tokens(self, gpu_memory_utilization: float) -> int:
        return _FIXED_STEP_KV_TOKENS


def roofline(gpu: str, model: str, tensor_parallel_size: int = 1) -> Roofline:
    """By name, in any case. Raises InvalidConfig that lists the names there are."""
    gpu_profile = GPUS.get(gpu.lower())
    if gpu_profile is None:
        raise InvalidConfig(f"there is no profile of the GPU {gpu!r}; there are {', '.join(GPUS)}")
    model_profile = MODELS.get(model.lower())
    if model_profile is None:
        raise InvalidConfig(f"there is no profile of the model {model!r}; there are {', '.join(MODELS)}")
    return Roofline(gpu_profile, model_profile, tensor_parallel_size)


def simulated_cache(
    timer: StepTimer,
    *,
    block_size: int,
    num_blocks: int | None,
    kv_cache_memory_bytes: int | None,
    gpu_memory_utilization: float,
) -> CacheInfo:
    """KV memory by `num_blocks`, else `kv_cache_memory_bytes`, else what the weights leave of the GPU.

    Raises InvalidConfig if not even one block fits.
    """
    block_bytes = timer.model.kv_bytes_per_token * block_size
    if num_blocks is None and kv_cache_memory_bytes is not None:
        num_blocks = kv_cache_memory_bytes // block_bytes
    elif num_blocks is None:
        num_blocks = timer.num_kv_tokens(gpu_memory_utilization) // block_size
    if num_blocks < 1:
        raise InvalidConfig(f"the KV memory is too small for one block of {block_bytes} bytes")
    return CacheInfo(block_size=block_size, num_blocks=num_blocks, kv_bytes=num_blocks * block_bytes)


def parse_profile(text: str) -> StepTimer:
    """Reads "GPU:MODEL", "GPU:MODEL:tpN" or "fixed:DURATION". Raises InvalidConfig."""
    gpu, _, rest = text.partition(":")
    if gpu == "fixed":
        match = _DURATION.fullmatch(rest)
        duration_s = math.inf if match is None else float(match[1]) * _UNIT_S[match[2]]
        if duration_s > _LONGEST_FIXED_STEP_S:
            raise InvalidConfig(
                f"{text!r} is not a profile; a fixed step time is written like fixed:2ms or fixed:500us, "
                f"and is at most {_LONGEST_FIXED_STEP_S:g} s"
            )
        return FixedStepTime(text, duration_s, MODELS[_FIXED_STEP_MODEL])
    model, _, parallelism = rest.partition(":")
    match = re.fullmatch(r"tp([1-9]\d*)", parallelism or "tp1")
    if not model or match is None:
        raise InvalidConfig(
            f"{text!r} is not a profile; write GPU:MODEL, GPU:MODEL:tpN or fixed:DURATION, such as h200:llama-3-8b, "
            f"h200:llama-3-70b:tp4 or fixed:2ms"
        )
    return roofline(gpu, model, int(match[1]))


def _check_tensor_parallel(gpu: Gpu, model: ModelProfile, size: int) -> None:
    if size < 1 or model.num_heads % size:
        raise InvalidConfig(
            f"tensor parallelism of {size} does not divide the {model.num_heads} attention heads of {model.name}"
        )
    if size > 1 and gpu.link_bandwidth == 0:
        raise InvalidConfig(f"{gpu.name} has no link to others of its kind, so its tensor parallelism is 1")
