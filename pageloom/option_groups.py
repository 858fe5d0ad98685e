"""Which options does each service have, whatever command starts it?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeVar

from pageloom import config
from pageloom import options as opt
from pageloom.limit_fields import described_limits
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.setting_checks import flag_name

LimitsT = TypeVar("LimitsT")
# Of each option its name, its annotation and its default.
OptionGroup = tuple[tuple[str, Any, object], ...]

TEXT: OptionGroup = (
    ("served_model_name", opt.ServedModelName, None),
    ("chat_template", opt.ChatTemplate, None),
    ("generation_config", opt.GenerationConfig, config.DEFAULT_GENERATION_CONFIG),
    ("tool_call_parser", opt.ToolCallParser, config.DEFAULT_PARSER),
    ("reasoning_parser", opt.ReasoningParser, config.DEFAULT_PARSER),
)
HTTP: OptionGroup = (
    ("allowed_origins", opt.AllowedOrigins, None),
    ("max_body_bytes", opt.MaxBodyBytes, config.DEFAULT_MAX_BODY_BYTES),
    ("max_stored_responses", opt.MaxStoredResponses, config.DEFAULT_MAX_STORED_RESPONSES),
    ("max_stored_response_bytes", opt.MaxStoredResponseBytes, config.DEFAULT_MAX_STORED_RESPONSE_BYTES),
    ("response_ttl", opt.ResponseTtl, config.DEFAULT_RESPONSE_TTL_S),
    ("batch_dir", opt.BatchDir, None),
    ("batch_concurrency", opt.BatchConcurrency, config.DEFAULT_BATCH_CONCURRENCY),
    ("max_file_bytes", opt.MaxFileBytes, config.DEFAULT_MAX_FILE_BYTES),
    ("max_stored_files", opt.MaxStoredFiles, config.DEFAULT_MAX_STORED_FILES),
    ("max_stored_file_bytes", opt.MaxStoredFileBytes, config.DEFAULT_MAX_STORED_FILE_BYTES),
    ("file_ttl", opt.FileTtl, config.DEFAULT_FILE_TTL_S),
)
MODEL: OptionGroup = (
    ("dtype", opt.DtypeOption, config.Dtype.auto),
    ("quantization", opt.QuantizationOption, config.Quantization.auto),
    ("device", opt.DeviceOption, config.Device.auto),
    ("cpu_kernels", opt.CpuKernelsOption, config.CpuKernels.auto),
    ("batch_invariant", opt.BatchInvariant, False),
    ("pooling", opt.PoolingOption, config.PoolingChoice.auto),
    ("speculative_method", opt.SpeculativeMethodOption, config.SpeculativeMethod.none),
    ("speculative_model", opt.SpeculativeModel, None),
    ("num_speculative_tokens", opt.NumSpeculativeTokens, config.DEFAULT_NUM_SPECULATIVE_TOKENS),
    ("prompt_lookup_min", opt.PromptLookupMin, config.DEFAULT_PROMPT_LOOKUP_MIN),
    ("prompt_lookup_max", opt.PromptLookupMax, config.DEFAULT_PROMPT_LOOKUP_MAX),
    ("suffix_memory_bytes", opt.SuffixMemoryBytes, config.DEFAULT_SUFFIX_MEMORY_BYTES),
    ("max_model_len", opt.MaxModelLen, None),
    ("num_threads", opt.NumThreads, None),
    ("block_size", opt.BlockSizeOption, opt.DEFAULT_BLOCK_SIZE),
    ("num_gpu_blocks_override", opt.NumBlocks, None),
    ("kv_cache_memory_bytes", opt.KvCacheMemory, None),
    ("grammar_cache_bytes", opt.GrammarCache, config.DEFAULT_GRAMMAR_CACHE_BYTES),
    ("gpu_memory_utilization", opt.MemoryUtilization, config.DEFAULT_MEMORY_UTILIZATION),
    ("tensor_parallel_size", opt.RanksPerLayer, 1),
    ("pipeline_parallel_size", opt.PipelineParallelSize, 1),
    ("nnodes", opt.NumNodes, 1),
    ("node_rank", opt.NodeRank, 0),
    ("master_addr", opt.MasterAddress, config.DEFAULT_HOST),
    ("master_port", opt.MasterPort, config.DEFAULT_MASTER_PORT),
)
# Of the scheduler and, what they are at most, of its workers.
STEP: OptionGroup = (
    ("max_num_seqs", opt.MaxNumSeqs, config.DEFAULT_MAX_NUM_SEQS),
    ("max_num_batched_tokens", opt.MaxNumBatchedTokens, config.DEFAULT_MAX_NUM_BATCHED_TOKENS),
)
# Of the scheduler, and of its simulation.
POLICY: OptionGroup = (
    ("enable_prefix_caching", opt.PrefixCaching, True),
    ("max_steps_in_flight", opt.MaxStepsInFlight, config.DEFAULT_MAX_NUM_STEPS_IN_FLIGHT),
    ("scheduling_policy", opt.SchedulingPolicyOption, SchedulingPolicy.fair),
    ("placement", opt.PlacementOption, Placement.cache_aware),
)
QUEUE: OptionGroup = (
    ("max_num_queued_seqs", opt.MaxNumQueuedSeqs, config.DEFAULT_MAX_NUM_QUEUED_SEQS),
    ("priority_ageing", opt.PriorityAgeing, config.DEFAULT_PRIORITY_AGEING_S),
    ("step_timeout", opt.StepTimeout, config.DEFAULT_STEP_TIMEOUT_S),
    ("record", opt.Record, None),
)


def limit_options(*kinds: type[Any]) -> OptionGroup:
    """One for each limit of some classes."""
    return tuple(
        (limit.name, Annotated[int, opt.option(flag_name(limit.name), limit.what)], limit.default)
        for kind in kinds
        for limit in described_limits(kind)
    )


def limits_of(kind: type[LimitsT], params: Mapping[str, Any]) -> LimitsT:
    """Raises InvalidConfig, naming the flag."""
    return kind(**{limit.name: params[limit.name] for limit in described_limits(kind)})


def takes(*groups: OptionGroup) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with these options besides its own; their values are in its context."""
    return lambda command: _with_options(command, [option for group in groups for option in group])


def _with_options(command: Callable[..., None], added: Iterable[tuple[str, Any, object]]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in added
    ]

    @wraps(command)
    def run(**params: Any) -> None:
        command(**{name: value for name, value in params.items() if name in signature.parameters})

    # Where typer looks for the options.
    vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    return run
