"""The settings of `pageloom simulate`: frozen, validated at construction, handed on as one JSON argument."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pageloom.config import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_NUM_STEPS_IN_FLIGHT,
    DEFAULT_MEMORY_UTILIZATION,
    ServiceConfig,
)
from pageloom.errors import InvalidConfig
from pageloom.setting_checks import require_part, require_room_for_decodes


class KvPolicy(StrEnum):
    """How KV memory is given out: in blocks as needed, or in one piece for each sequence at its admission.

    A piece is as long as the longest context (`max_length`), the prompt plus what the request asks for at most
    (`reserve`), plus the next power of two of what it will generate (`pow2`), or plus exactly that (`oracle`); the
    last two know the future.
    """

    paged = "paged"
    max_length = "max-length"
    reserve = "reserve"
    pow2 = "pow2"
    oracle = "oracle"


class Allocator(StrEnum):
    """Where a contiguous piece goes."""

    first_fit = "first-fit"
    buddy = "buddy"


# What a scheduler on a GPU server would have, rather than the defaults of this host's CPU.
DEFAULT_SIMULATED_MAX_NUM_SEQS = 256
DEFAULT_SIMULATED_MAX_NUM_BATCHED_TOKENS = 8192
# As in the public studies of such traces; clients set it well above what they expect.
DEFAULT_MAX_TOKENS = 1024
# A plan's and its result's way over gRPC on one host, both together.
DEFAULT_HOP_LATENCY_S = 0.0003
MAX_HOP_LATENCY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig(ServiceConfig):
    """What to simulate. KV memory of a worker is `num_blocks` if set, else `kv_cache_memory_bytes`, else what
    `gpu_memory_utilization` of its GPUs leaves beside the weights.

    `trace` is a dataset, an excerpt or a file; `request_rate` sets its mean rate, or `time_scale` stretches it;
    `tenants` are weights such as "a=1,b=10". `plot` and `json` are files to write.
    """

    trace: str
    gpu: str = "h200"
    model: str = "llama-3-8b"
    tensor_parallel_size: int = 1
    num_workers: int = 1
    max_num_seqs: int = DEFAULT_SIMULATED_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_SIMULATED_MAX_NUM_BATCHED_TOKENS
    max_model_len: int | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = DEFAULT_MEMORY_UTILIZATION
    enable_prefix_caching: bool = True
    max_num_steps_in_flight: int = DEFAULT_MAX_NUM_STEPS_IN_FLIGHT
    scheduling_policy: str = "fair"
    placement: str = "cache-aware"
    kv_policy: str = "paged"
    allocator: str = "first-fit"
    max_tokens: int = DEFAULT_MAX_TOKENS
    hop_latency_s: float = DEFAULT_HOP_LATENCY_S
    num_requests: int | None = None
    request_rate: float | None = None
    time_scale: float | None = None
    length_scale: float = 1.0
    tenants: str = ""
    seed: int = 0
    plot: str | None = None
    json: str | None = None

    def __post_init__(self) -> None:
        require_room_for_decodes(self.max_num_batched_tokens, self.max_num_seqs)
        require_part("gpu_memory_utilization", self.gpu_memory_utilization)
        for flag, value in (
            ("--request-rate", self.request_rate),
            ("--time-scale", self.time_scale),
            ("--length-scale", self.length_scale),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise InvalidConfig(f"{flag} must be above 0, not {value:g}")
        if not 0 <= self.hop_latency_s <= MAX_HOP_LATENCY_S:
            raise InvalidConfig(
                f"--hop-latency must be between 0 and {MAX_HOP_LATENCY_S:g} seconds, not {self.hop_latency_s:g}"
            )
        if self.request_rate is not None and self.time_scale is not None:
            raise InvalidConfig("--request-rate and --time-scale both set how fast requests come; give one of them")
        self._check_contiguous()
        self.tenant_weights()

    def tenant_weights(self) -> dict[str, float]:
        """Raises InvalidConfig if `tenants` cannot be read."""
        weights: dict[str, float] = {}
        for part in filter(None, self.tenants.split(",")):
            name, _, text = part.partition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = 0.0
            if not name or not 0 < weight < float("inf") or name in weights:
                raise InvalidConfig(
                    f"--tenants must be weights above 0 by name, such as a=1,b=10, not {self.tenants!r}"
                )
            weights[name] = weight
        return weights

    def _check_contiguous(self) -> None:
        if self.kv_policy == KvPolicy.paged:
            return
        if self.num_workers > 1:
            raise InvalidConfig(f"--kv-policy {self.kv_policy} is simulated with one worker, not {self.num_workers}")
