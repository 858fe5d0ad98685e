"""Which engine does `LLM(...)` start? Its keyword arguments -> the settings of scheduler and workers."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints

from pageloom.config import (
    DEFAULT_GENERATION_CONFIG,
    DEFAULT_PARSER,
    SchedulerConfig,
    SpeculativeMethod,
    WorkerConfig,
)
from pageloom.errors import InvalidConfig, StartupError
from pageloom.llm.argument_names import check_names
from pageloom.llm.engine import EngineConfig
from pageloom.option_names import settings_of
from pageloom.stack_config import StackConfig
from pageloom.text_model import TextOptions


class EngineOptions(TypedDict, total=False):
    """Options of `pageloom serve` that concern the engine, with its defaults; docs/configuration.md describes them."""

    dtype: str
    quantization: str | None
    device: str
    cpu_kernels: str
    batch_invariant: bool
    pooling: str
    speculative_method: str | None
    speculative_model: str | None
    num_speculative_tokens: int | None
    prompt_lookup_min: int
    prompt_lookup_max: int
    suffix_memory_bytes: int
    grammar_cache_bytes: int
    max_model_len: int | None
    num_threads: int | None
    block_size: int
    num_gpu_blocks_override: int | None
    kv_cache_memory_bytes: int | None
    gpu_memory_utilization: float
    enable_prefix_caching: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_seqs: int
    max_steps_in_flight: int
    scheduling_policy: str
    placement: str
    priority_ageing: float
    step_timeout: float
    tensor_parallel_size: int
    pipeline_parallel_size: int
    nnodes: int
    master_addr: str
    master_port: int
    data_parallel_size: int
    record: str | None
    log_level: str


class LLMOptions(EngineOptions, total=False):
    """What `LLM` and `AsyncLLM` take besides the model. With `address`, "host:port" or "unix:/path" of a scheduler that
    runs, no engine is started, and its options cannot be set. `speculative_config` is vLLM's way to say the options of
    guessing: `method`, `model`, `num_speculative_tokens`, `prompt_lookup_min`, `prompt_lookup_max`; besides them
    `suffix_memory_bytes`. `chat_template` is a file or Jinja text instead of the
    model's; `generation_config`, `tool_call_parser` and `reasoning_parser` are those of `pageloom serve`. `seed`, 0 by
    default, draws the seeds of requests that have none, in the order in which they come; None: every run differs."""

    address: str | None
    speculative_config: Mapping[str, Any] | None
    chat_template: str | None
    generation_config: str
    tool_call_parser: str
    reasoning_parser: str
    seed: int | None


# Arguments of vLLM's LLM that mean nothing here -> why.
_NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        "trust_remote_code": "models bring no code here, so leave it out",
        "enforce_eager": "nothing is compiled when the engine starts",
        "tokenizer": "the tokenizer is that of the model's files",
        "tokenizer_mode": "the tokenizer is that of the model's files",
        "swap_space": "a preempted sequence is computed anew",
        "cpu_offload_gb": "weights stay where the model runs",
        "disable_log_stats": "get_metrics() is always there",
        "task": "every model generates and embeds",
        "runner": "every model generates and embeds",
    }
)
# In `speculative_config` -> as an argument.
_OF_SPECULATION: Mapping[str, str] = MappingProxyType(
    {
        "method": "speculative_method",
        "model": "speculative_model",
        "num_speculative_tokens": "num_speculative_tokens",
        "prompt_lookup_min": "prompt_lookup_min",
        "prompt_lookup_max": "prompt_lookup_max",
        "suffix_memory_bytes": "suffix_memory_bytes",
    }
)
_DRAFT_MODEL_OF_VLLM = "draft_model"
_FLAG = re.compile(r"--([a-z][a-z-]*)")


def engine_config(caller: str, model: str, options: LLMOptions) -> EngineConfig:
    """Raises TypeError for an argument that nobody knows, and InvalidConfig, naming the argument."""
    given = cast("dict[str, Any]", options)
    check_names(caller, given, LLMOptions, _NOT_HERE)
    _check_types(given)
    engine = {
        name: value for name, value in given.items() if name in EngineOptions.__annotations__ and value is not None
    }
    engine = _with_speculation(engine, options.get("speculative_config") or {})
    address = options.get("address")
    if address is not None and engine:
        raise InvalidConfig(f"{min(engine)} is a setting of the engine, and with address that runs already")
    return EngineConfig(
        model=model,
        text=TextOptions(
            chat_template=options.get("chat_template"),
            generation_config=options.get("generation_config", DEFAULT_GENERATION_CONFIG),
            tool_call_parser=options.get("tool_call_parser", DEFAULT_PARSER),
            reasoning_parser=options.get("reasoning_parser", DEFAULT_PARSER),
        ),
        stack=_stack_config(model, engine) if address is None else None,
        address=address,
        seed=options.get("seed", 0),
    )


@contextmanager
def naming_arguments() -> Generator[None]:
    """Settings name their flags; here they are arguments."""
    try:
        yield
    except StartupError as error:
        raise type(error)(_FLAG.sub(_argument, error.message)) from None


def _argument(flag: re.Match[str]) -> str:
    name = flag[1].replace("-", "_")
    return name if name in get_type_hints(LLMOptions) else flag[0]


def _stack_config(model: str, engine: Mapping[str, Any]) -> StackConfig:
    """A scheduler and workers for one program, behind a unix socket and with metrics at ports that are free."""
    params = {"log_level": "warning", **engine}
    with naming_arguments():
        return StackConfig(
            scheduler=settings_of(SchedulerConfig, params, metrics_port=0),
            worker=settings_of(WorkerConfig, params, model=model, metrics_port=0),
            gateway=None,
            num_workers=_num_workers(params),
        )


def _with_speculation(engine: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of vLLM's `speculative_config`. Raises InvalidConfig."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        argument = _OF_SPECULATION.get(name)
        if argument is None:
            raise InvalidConfig(f"speculative_config has {name!r}; it takes {', '.join(_OF_SPECULATION)}")
        if argument in engine:
            raise InvalidConfig(f"{argument} and speculative_config[{name!r}] say the same; leave out one")
        _check_type(f"speculative_config[{name!r}]", value, get_type_hints(EngineOptions)[argument])
        if value is not None:
            options[argument] = value
    if options and not {"speculative_method", "speculative_model"} & (options.keys() | engine.keys()):
        raise InvalidConfig("speculative_config needs a method or a model: without one nothing is guessed")
    if options.get("speculative_method") == _DRAFT_MODEL_OF_VLLM:
        options["speculative_method"] = SpeculativeMethod.draft_model.value
    return {**engine, **options}


def _num_workers(params: Mapping[str, Any]) -> int:
    num_workers: int = params.get("data_parallel_size", 1)
    if num_workers < 1:
        raise InvalidConfig(f"data_parallel_size must be at least 1, not {num_workers}")
    return num_workers


def _check_types(params: Mapping[str, Any]) -> None:
    for name, kind in get_type_hints(LLMOptions).items():
        if name in params:
            _check_type(name, params[name], kind)


def _check_type(name: str, value: object, kind: Any) -> None:
    members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    accepted = tuple(get_origin(member) or member for member in members)
    fits = type(value) in accepted or (type(value) is int and float in accepted) or isinstance(value, accepted)
    if not fits or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if each is type(None) else each.__name__ for each in accepted)
        raise InvalidConfig(f"{name} must be of type {names}, not {value!r}")
