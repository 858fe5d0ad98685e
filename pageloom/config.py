"""The settings of each service: frozen, validated at construction, handed from the CLI as one JSON argument.

`cli.py` is the only reader of flags and environment; a service process gets the finished value.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum
from typing import Any, Self

from pageloom.errors import InvalidConfig
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.grammar_limits import DEFAULT_GRAMMAR_LIMITS, GrammarLimits
from pageloom.plan import MAX_NUM_DRAFT_TOKENS
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.request_limits import RequestLimits
from pageloom.setting_checks import (
    MAX_BYTES,
    MAX_NUM_RANKS,
    MAX_NUM_THREADS,
    MAX_PORT,
    require_at_least,
    require_one_of,
    require_origin,
    require_part,
    require_port,
    require_room_for_decodes,
    require_seconds,
)


class Dtype(StrEnum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Quantization(StrEnum):
    auto = "auto"
    none = "none"
    gguf = "gguf"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class CpuKernels(StrEnum):
    auto = "auto"
    torch = "torch"


class SpeculativeMethod(StrEnum):
    none = "none"
    ngram = "ngram"
    suffix = "suffix"
    draft_model = "draft-model"
    eagle3 = "eagle3"


_WITHOUT_MODEL = (SpeculativeMethod.ngram, SpeculativeMethod.suffix)


class PoolingChoice(StrEnum):
    auto = "auto"
    last = "last"
    mean = "mean"


class BlockSize(int, Enum):
    b16 = 16
    b32 = 32
    b64 = 64
    b128 = 128


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


# Defaults, shared with the command line.
DEFAULT_HOST = "127.0.0.1"
DEFAULT_SCHEDULER_PORT = 50051
DEFAULT_SCHEDULER_ADDRESS = f"{DEFAULT_HOST}:{DEFAULT_SCHEDULER_PORT}"
DEFAULT_PORT = 8000
DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024
DEFAULT_GENERATION_CONFIG = "auto"
DEFAULT_MAX_STORED_RESPONSES = 1000
DEFAULT_MAX_STORED_RESPONSE_BYTES = 64 * 1024 * 1024
DEFAULT_RESPONSE_TTL_S = 86_400.0
# Those of OpenAI, but for the total.
DEFAULT_MAX_FILE_BYTES = 200 * 1024 * 1024
DEFAULT_MAX_STORED_FILES = 1000
DEFAULT_MAX_STORED_FILE_BYTES = 2 * 1024 * 1024 * 1024
DEFAULT_FILE_TTL_S = 30 * 86_400.0
# Half of the sequences of a step, so that clients find room.
DEFAULT_BATCH_CONCURRENCY = 32
# From the chat template.
DEFAULT_PARSER = "auto"
DEFAULT_DRAIN_TIMEOUT_S = 30.0
# Far above the longest step of a slow CPU: 2,048 tokens of a long prompt.
DEFAULT_STEP_TIMEOUT_S = 120.0
DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_MAX_NUM_QUEUED_SEQS = 1024
DEFAULT_MAX_NUM_STEPS_IN_FLIGHT = 2
DEFAULT_PRIORITY_AGEING_S = 60.0
DEFAULT_BLOCK_SIZE = 32
# Eight rows of a step.
DEFAULT_NUM_SPECULATIVE_TOKENS = 7
DEFAULT_PROMPT_LOOKUP_MIN = 2
DEFAULT_PROMPT_LOOKUP_MAX = 5
# About 130,000 tokens of recent outputs.
DEFAULT_SUFFIX_MEMORY_BYTES = 64 * 1024 * 1024
DEFAULT_MEMORY_UTILIZATION = 0.9
DEFAULT_GRAMMAR_CACHE_BYTES = 256 * 1024 * 1024
DEFAULT_WORKER_ID = "worker-0"
# That of torchrun.
DEFAULT_MASTER_PORT = 29500
# Below what the kernel holds: 107 bytes on Linux, 103 on macOS.
MAX_SOCKET_PATH_BYTES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What every service has. `status_fd` is set by a supervising parent: see `supervision.py`."""

    log_level: str = "info"
    status_fd: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**_with_tuples(json.loads(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """Settings of the HTTP gateway. `model` locates tokenizer and chat template only. `generation_config` is "auto",
    "vllm" or a folder: see `options.py`. With `shares_port` other gateways of the same user may listen on the port.
    Those that are one service have a folder `shared_dir`, which the environment's PROMETHEUS_MULTIPROC_DIR names
    too."""

    model: str
    served_model_names: tuple[str, ...]
    scheduler_address: str = DEFAULT_SCHEDULER_ADDRESS
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    chat_template: str | None = None
    generation_config: str = DEFAULT_GENERATION_CONFIG
    allowed_origins: tuple[str, ...] = ()
    tool_call_parser: str = DEFAULT_PARSER
    reasoning_parser: str = DEFAULT_PARSER
    drain_timeout_s: float = DEFAULT_DRAIN_TIMEOUT_S
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    limits: RequestLimits = field(default_factory=RequestLimits)
    form_limits: FormLimits = DEFAULT_FORM_LIMITS
    grammar_limits: GrammarLimits = DEFAULT_GRAMMAR_LIMITS
    shares_port: bool = False
    shared_dir: str | None = None
    max_stored_responses: int = DEFAULT_MAX_STORED_RESPONSES
    max_stored_response_bytes: int = DEFAULT_MAX_STORED_RESPONSE_BYTES
    response_ttl_s: float = DEFAULT_RESPONSE_TTL_S
    batch_dir: str | None = None
    batch_concurrency: int = DEFAULT_BATCH_CONCURRENCY
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    max_stored_files: int = DEFAULT_MAX_STORED_FILES
    max_stored_file_bytes: int = DEFAULT_MAX_STORED_FILE_BYTES
    file_ttl_s: float = DEFAULT_FILE_TTL_S

    def __post_init__(self) -> None:
        require_port("port", self.port)
        require_at_least("batch_concurrency", self.batch_concurrency, 1)
        if not all(self.served_model_names):
            raise InvalidConfig("--served-model-name must not be empty")
        require_seconds("shutdown_timeout", self.drain_timeout_s, 0.0)
        require_seconds("response_ttl", self.response_ttl_s, 0.0)
        require_seconds("file_ttl", self.file_ttl_s, 1.0)
        for origin in self.allowed_origins:
            require_origin(origin)

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = _with_tuples(json.loads(text))
        limits = {
            "limits": RequestLimits(**values["limits"]),
            "form_limits": FormLimits(**values["form_limits"]),
            "grammar_limits": GrammarLimits(**values["grammar_limits"]),
        }
        return cls(**{**values, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ServiceConfig):
    """Settings of the scheduler. Port 0 picks a free port; `socket_path` is a unix socket to listen on besides.
    `max_num_steps_in_flight` plans are out at one worker, and `priority_ageing_s` seconds in the queue outweigh one
    level of priority. What the core is told and answers is written to `record_path`."""

    host: str = DEFAULT_HOST
    port: int = 0
    socket_path: str | None = None
    metrics_host: str = DEFAULT_HOST
    metrics_port: int | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    max_num_queued_seqs: int = DEFAULT_MAX_NUM_QUEUED_SEQS
    enable_prefix_caching: bool = True
    max_num_steps_in_flight: int = DEFAULT_MAX_NUM_STEPS_IN_FLIGHT
    scheduling_policy: str = SchedulingPolicy.fair.value
    placement: str = Placement.cache_aware.value
    priority_ageing_s: float = DEFAULT_PRIORITY_AGEING_S
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 10.0
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    drain_timeout_s: float = DEFAULT_DRAIN_TIMEOUT_S
    record_path: str | None = None

    def __post_init__(self) -> None:
        require_port("port", self.port)
        require_one_of("log_level", self.log_level, LogLevel)
        require_at_least("max_num_seqs", self.max_num_seqs, 1)
        require_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        require_seconds("shutdown_timeout", self.drain_timeout_s, 0.0)
        require_seconds("step_timeout", self.step_timeout_s, 1.0)
        require_at_least("max_num_queued_seqs", self.max_num_queued_seqs, 1)
        require_one_of("scheduling_policy", self.scheduling_policy, SchedulingPolicy)
        require_one_of("placement", self.placement, Placement)
        if self.max_num_steps_in_flight not in (1, 2):
            raise InvalidConfig(f"--max-steps-in-flight must be 1 or 2, not {self.max_num_steps_in_flight}")
        if not 0 < self.priority_ageing_s < math.inf:
            raise InvalidConfig(f"--priority-ageing must be above 0 seconds and finite, not {self.priority_ageing_s:g}")
        require_room_for_decodes(self.max_num_batched_tokens, self.max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(ServiceConfig):
    """Settings of a worker. KV memory is `num_blocks` if set, else `kv_cache_memory_bytes`, else a fraction: on a
    GPU what `gpu_memory_utilization` of its memory leaves beside the weights, on a CPU a quarter of the
    available memory and at most 4 GiB. With `simulate`, a profile as `roofline.parse_profile` reads it, no model is
    loaded. `tensor_parallel_size` * `pipeline_parallel_size` ranks hold the model together, as many on each of `nnodes`
    machines; the figures of memory and threads are for each rank."""

    model: str
    simulate: str | None = None
    scheduler_address: str = DEFAULT_SCHEDULER_ADDRESS
    worker_id: str = DEFAULT_WORKER_ID
    metrics_host: str = DEFAULT_HOST
    metrics_port: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "auto"
    cpu_kernels: str = "auto"
    batch_invariant: bool = False
    pooling: str = "auto"
    speculative_method: str = "none"
    speculative_model: str | None = None
    num_speculative_tokens: int = DEFAULT_NUM_SPECULATIVE_TOKENS
    prompt_lookup_min: int = DEFAULT_PROMPT_LOOKUP_MIN
    prompt_lookup_max: int = DEFAULT_PROMPT_LOOKUP_MAX
    suffix_memory_bytes: int = DEFAULT_SUFFIX_MEMORY_BYTES
    max_model_len: int | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = DEFAULT_MEMORY_UTILIZATION
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    num_threads: int | None = None
    grammar_cache_bytes: int = DEFAULT_GRAMMAR_CACHE_BYTES
    grammar_limits: GrammarLimits = DEFAULT_GRAMMAR_LIMITS
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = DEFAULT_HOST
    master_port: int = DEFAULT_MASTER_PORT
    drain_timeout_s: float = DEFAULT_DRAIN_TIMEOUT_S

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_local_ranks(self) -> int:
        """On each machine."""
        return self.num_ranks // self.nnodes

    def __post_init__(self) -> None:
        self._check_ranks()
        require_one_of("log_level", self.log_level, LogLevel)
        require_one_of("device", self.device, Device)
        require_one_of("dtype", self.dtype, Dtype)
        require_one_of("quantization", self.quantization, Quantization)
        require_one_of("cpu_kernels", self.cpu_kernels, CpuKernels)
        require_one_of("pooling", self.pooling, PoolingChoice)
        require_one_of("block_size", self.block_size, BlockSize)
        self._require_speculation()
        require_at_least("max_num_seqs", self.max_num_seqs, 1)
        require_room_for_decodes(self.max_num_batched_tokens, self.max_num_seqs)
        require_part("gpu_memory_utilization", self.gpu_memory_utilization)
        self._require_sizes()

    def _require_sizes(self) -> None:
        require_at_least("grammar_cache_bytes", self.grammar_cache_bytes, 1, MAX_BYTES)
        require_seconds("shutdown_timeout", self.drain_timeout_s, 0.0)
        if self.max_model_len is not None:
            require_at_least("max_model_len", self.max_model_len, 1)
        if self.num_blocks is not None:
            require_at_least("num_gpu_blocks_override", self.num_blocks, 1)
        if self.kv_cache_memory_bytes is not None:
            require_at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1, MAX_BYTES)
        if self.num_threads is not None:
            require_at_least("num_threads", self.num_threads, 1, MAX_NUM_THREADS)

    def _check_ranks(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "nnodes"):
            require_at_least(name, getattr(self, name), 1, MAX_NUM_RANKS)
        require_at_least("master_port", self.master_port, 1, MAX_PORT)
        if self.num_ranks % self.nnodes:
            raise InvalidConfig(
                f"--nnodes {self.nnodes} does not divide the {self.num_ranks} ranks of --tensor-parallel-size "
                f"{self.tensor_parallel_size} and --pipeline-parallel-size {self.pipeline_parallel_size}"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise InvalidConfig(f"--node-rank must be between 0 and {self.nnodes - 1}, not {self.node_rank}")
        if self.num_ranks > 1 and (self.speculative_model or "").startswith("layers:"):
            raise InvalidConfig(
                "--speculative-model layers:N needs a model that one rank holds; with --tensor-parallel-size or "
                "--pipeline-parallel-size, give a model of its own, or --speculative-method ngram or suffix"
            )
        if self.pipeline_parallel_size > 1 and self.speculative_method == SpeculativeMethod.eagle3:
            raise InvalidConfig(
                "--speculative-method eagle3 does not go with --pipeline-parallel-size; guess with draft-model, ngram "
                "or suffix"
            )
        if self.simulate is not None and self.num_ranks > 1:
            raise InvalidConfig("--simulate takes the number of GPUs in its profile, such as h200:llama-3-70b:tp4")

    def _require_speculation(self) -> None:
        require_one_of("speculative_method", self.speculative_method, SpeculativeMethod)
        if not 1 <= self.num_speculative_tokens <= MAX_NUM_DRAFT_TOKENS:
            raise InvalidConfig(
                f"--num-speculative-tokens must be between 1 and {MAX_NUM_DRAFT_TOKENS}, "
                f"not {self.num_speculative_tokens}"
            )
        require_at_least("prompt_lookup_min", self.prompt_lookup_min, 1)
        require_at_least("prompt_lookup_max", self.prompt_lookup_max, 1)
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise InvalidConfig(
                f"--prompt-lookup-max must be at least --prompt-lookup-min, which is {self.prompt_lookup_min}, "
                f"not {self.prompt_lookup_max}"
            )
        require_at_least("suffix_memory_bytes", self.suffix_memory_bytes, 0, MAX_BYTES)
        guesses_with_model = self.speculative_method in (SpeculativeMethod.draft_model, SpeculativeMethod.eagle3)
        if guesses_with_model and self.speculative_model is None:
            raise InvalidConfig(f"--speculative-method {self.speculative_method} needs --speculative-model")
        if self.speculative_model is not None and self.speculative_method in _WITHOUT_MODEL:
            raise InvalidConfig(
                f"--speculative-model does not go with --speculative-method {self.speculative_method}; leave out one"
            )
        if self.simulate is not None and (self.speculative_method, self.speculative_model) != ("none", None):
            raise InvalidConfig(
                "--speculative-method and --speculative-model need a model; with --simulate nothing can be guessed"
            )

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = _with_tuples(json.loads(text))
        return cls(**{**values, "grammar_limits": GrammarLimits(**values["grammar_limits"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(ServiceConfig):
    """Settings of a replay: the recording at `path`, up to its plan number `until` if that is set."""

    path: str
    until: int | None = None


def fits_socket_address(path: str) -> bool:
    """Whether a unix socket can have this path."""
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    # JSON has no tuples, and no setting is a list.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
