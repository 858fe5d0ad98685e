"""What `LLM(...)` takes, and what it says of what it does not take."""

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest

from pageloom import LLM, AsyncLLM, cli
from pageloom.config import SchedulerConfig, WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError, StartupError
from pageloom.grammar_limits import GrammarLimits
from pageloom.llm.engine_options import EngineOptions, LLMOptions, engine_config, naming_arguments

# Of the command line: where processes listen, how they stop, what they are called by others, and what protects a server
# from its clients.
NOT_OF_A_PROGRAM = {
    "model", "host", "port", "uds", "metrics_host", "metrics_port", "shutdown_timeout", "simulate", "scheduler",
    "worker_id", "node_rank",
    *(field.name for field in dataclasses.fields(GrammarLimits)),
}  # fmt: skip


def test_every_option_of_the_engine_is_an_argument():
    options = {name for each in (cli.scheduler, cli.worker) for name in inspect.signature(each).parameters}
    assert options - {"context"} - NOT_OF_A_PROGRAM <= EngineOptions.__annotations__.keys()


def test_arguments_reach_the_services():
    config = engine_config(
        "LLM",
        "",
        {
            "max_num_seqs": 8,
            "block_size": 16,
            "num_gpu_blocks_override": 77,
            "quantization": None,
            "step_timeout": 9,
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        },
    )
    assert config.stack is not None
    assert config.stack.scheduler.max_num_seqs == config.stack.worker.max_num_seqs == 8
    assert (config.stack.worker.block_size, config.stack.worker.num_blocks) == (16, 77)
    assert config.stack.worker.quantization == "auto"
    assert config.stack.scheduler.step_timeout_s == 9
    assert (config.stack.worker.speculative_method, config.stack.worker.num_speculative_tokens) == ("ngram", 3)
    assert config.stack.gateway is None


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 3, "prompt_lookup_max": 4},
            {
                "speculative_method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_min": 3,
                "prompt_lookup_max": 4,
            },
        ),
        (
            {"method": "suffix", "model": None, "suffix_memory_bytes": 0},
            {"speculative_method": "suffix", "suffix_memory_bytes": 0},
        ),
        ({"model": "layers:4"}, {"speculative_model": "layers:4"}),
        (
            {"method": "draft_model", "model": "layers:4"},
            {"speculative_method": "draft-model", "speculative_model": "layers:4"},
        ),
        (None, {}),
    ],
)
def test_speculative_config_has_vllms_names(given, settings):
    config = engine_config("LLM", "", {"speculative_config": given})
    assert config.stack is not None
    assert config.stack.worker == WorkerConfig(model="", metrics_port=0, log_level="warning", **settings)


def test_defaults_are_those_of_the_command_line():
    config = engine_config("LLM", "", {})
    assert config.stack is not None
    assert config.stack.scheduler == SchedulerConfig(metrics_port=0, log_level="warning")
    assert config.stack.worker == WorkerConfig(model="", metrics_port=0, log_level="warning")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_num_seq": 3}, ["LLM()", "'max_num_seq'", "did you mean 'max_num_seqs'"]),
        ({"gpu_memory_utilisation": 0.5}, ["did you mean 'gpu_memory_utilization'"]),
        ({"trust_remote_code": True}, ["'trust_remote_code'", "no code"]),
        ({"wibble": 1}, ["'wibble'"]),
    ],
)
def test_unknown_arguments(arguments, words: list[str]):
    with pytest.raises(TypeError) as refused:
        LLM(**arguments)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"block_size": 7}, ["block_size must be one of 16, 32, 64, 128"]),
        ({"max_num_seqs": 0}, ["max_num_seqs must be at least 1"]),
        ({"max_model_len": "8k"}, ["max_model_len must be an integer or None, not '8k'"]),
        ({"max_num_seqs": True}, ["max_num_seqs", "int", "True"]),
        ({"enable_prefix_caching": 1}, ["enable_prefix_caching must be True or False, not 1"]),
        ({"gpu_memory_utilization": 1.5}, ["gpu_memory_utilization", "1.5"]),
        ({"data_parallel_size": 0}, ["data_parallel_size"]),
        ({"tensor_parallel_size": 0}, ["tensor_parallel_size"]),
        ({"speculative_config": "ngram"}, ["speculative_config must be a mapping", "'ngram'"]),
        ({"speculative_config": {"speed": 2}}, ["speculative_config", "'speed'", "num_speculative_tokens"]),
        ({"speculative_config": {"num_speculative_tokens": 3}}, ["speculative_config", "method", "model"]),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": "3"}}, ["int", "'3'"]),
        ({"speculative_config": {"method": "medusa"}}, ["speculative_method", "ngram", "medusa"]),
        (
            {"speculative_method": "suffix", "speculative_config": {"method": "ngram"}},
            ["speculative_method", "speculative_config['method']"],
        ),
        ({"speculative_config": {"method": "ngram"}, "address": "127.0.0.1:1"}, ["speculative_method", "address"]),
        ({"num_speculative_tokens": 0}, ["num_speculative_tokens must be between"]),
        ({"address": "127.0.0.1:1", "dtype": "float32"}, ["dtype", "address"]),
        ({"address": "localhost"}, ["address must be HOST:PORT or unix:/PATH", "'localhost'"]),
        ({"model": 5}, ["model must be a string or a path, not 5"]),
        ({"model": "a\0b"}, ["model has a character 0"]),
        ({"record": "\ud800"}, ["record is not valid Unicode"]),
        ({"log_level": "loud"}, ["log_level must be one of debug, info, warning, error"]),
        ({"step_timeout": float("nan")}, ["step_timeout must be at least 1 seconds and finite, not nan"]),
        ({"step_timeout": 0}, ["step_timeout must be at least 1"]),
        ({"num_gpu_blocks_override": 0}, ["num_gpu_blocks_override must be at least 1"]),
        ({"num_gpu_blocks_override": 2**31}, ["num_gpu_blocks_override must be at most 2147483647"]),
        ({"max_num_batched_tokens": 10**30}, ["max_num_batched_tokens must be at most"]),
        ({"kv_cache_memory_bytes": 10**30}, ["kv_cache_memory_bytes must be at most"]),
        ({"grammar_cache_bytes": -1}, ["grammar_cache_bytes must be at least 1"]),
        ({"num_threads": 10**6}, ["num_threads must be at most 1024"]),
        ({"tensor_parallel_size": 10**6}, ["tensor_parallel_size must be at most 1024"]),
        ({"data_parallel_size": 65}, ["data_parallel_size must be at most 64"]),
        ({"master_port": 70000}, ["master_port must be at most 65535"]),
    ],
)
def test_values_that_are_not_accepted(arguments, words: list[str]):
    for kind in (LLM, AsyncLLM):
        with pytest.raises(InvalidConfig) as refused:
            kind(**arguments)
        for word in words:
            assert word in refused.value.message


def test_paths_and_numbers_of_numpy_are_taken(tmp_path: Path):
    config = engine_config("LLM", tmp_path, {"max_num_seqs": np.int64(8)})  # type: ignore[typeddict-item]
    assert config.model == str(tmp_path)
    assert config.stack is not None
    assert WorkerConfig.from_json(config.stack.worker.to_json()).max_num_seqs == 8


def test_parsers_are_named_as_arguments():
    with pytest.raises(InvalidConfig, match=r"^tool_call_parser must be"):
        LLM(tool_call_parser="nobodys")


def test_what_a_worker_says_is_named_so_too():
    with pytest.raises(StartupError) as failed, naming_arguments():
        raise StartupError("worker: --tensor-parallel-size 2 is wrong; run: pip install --no-deps something")
    assert failed.value.message == "worker: tensor_parallel_size 2 is wrong; run: pip install --no-deps something"


def test_a_model_that_is_not_there():
    with pytest.raises(ModelLoadError, match="no/such/folder"):
        LLM("no/such/folder")


def test_the_options_are_all_typed():
    assert EngineOptions.__annotations__.keys() < LLMOptions.__annotations__.keys()
