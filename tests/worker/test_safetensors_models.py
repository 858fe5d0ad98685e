"""Model folders: dtypes, end-of-sequence ids, old and new config keys, and one clear line for what is wrong."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError
from tests.support.plan_driver import PlanDriver
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.hf_config import read_hf_config
from worker_svc.runner import ModelRunner, load_runner

PROMPTS = [[1, 2, 3], [*range(90, 180)]]


def load(path: Path, **settings) -> ModelRunner:
    limits = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 4, "num_threads": 1}
    values = {**limits, "device": "cpu", **settings}
    return load_runner(WorkerConfig(model=str(path), scheduler_address="", **values), lambda _done, _total: None)


def edit_config(folder: Path, removed: tuple[str, ...] = (), file_name: str = "config.json", **changes) -> None:
    path = folder / file_name
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (config | changes).items() if key not in removed}))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    make_checkpoint(folder, max_shard_size="60KB")
    return folder


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    make_checkpoint(folder, family="qwen3_moe")
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    for path in pristine.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_progress_counts_all_bytes(folder):
    calls: list[tuple[int, int]] = []
    config = WorkerConfig(model=str(folder), scheduler_address="", num_blocks=64, device="cpu")
    runner = load_runner(config, lambda done, total: calls.append((done, total)))
    assert calls[0][0] == 0
    assert calls[-1][0] == calls[-1][1] == runner.model_info.weights_bytes
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_old_config_keys_mean_the_same(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    reference = make_checkpoint(tmp_path, rope_parameters=rope)
    edit_config(
        tmp_path, removed=("rope_parameters",), rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0}
    )
    assert PlanDriver(load(tmp_path)).generate(PROMPTS, 12) == reference_greedy(PROMPTS, 12, reference)


def test_all_end_tokens_count(folder):
    edit_config(folder, eos_token_id=5)
    edit_config(folder, file_name="generation_config.json", eos_token_id=[3, 5, 210, 211])
    # 211 is outside the vocabulary: it can never be drawn.
    assert load(folder).model_info.eos_token_ids == (5, 3, 210)


def test_dtypes(tmp_path):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        make_checkpoint(tmp_path / str(dtype), dtype=dtype)
    has_bfloat16 = torch.cpu.get_capabilities().get("avx512_bf16", False)
    half = "bfloat16" if has_bfloat16 else "float32"
    assert load(tmp_path / "torch.float32").model_info.dtype == "float32"
    assert load(tmp_path / "torch.bfloat16").model_info.dtype == half
    assert load(tmp_path / "torch.float16").model_info.dtype == half
    runner = load(tmp_path / "torch.float16", dtype="float16")
    assert runner.model_info.dtype == "float16"
    assert len(PlanDriver(runner).generate(PROMPTS, 3)[1]) == 3


def test_no_code_and_no_pickle_of_the_folder_is_run(folder):
    marker = folder / "marker"
    (folder / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')")
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    load(folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin holds pickled weights, which are never loaded"):
        load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "gemma3.*supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification.*not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported is 'silu'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope' is not supported; supported are default, linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"hidden_size": "64"}, "hidden_size is '64', not of type int"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, it must be at least 1"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_key_value_heads": 3}, "4 heads of 16 dimensions and 3 key-value heads do not fit"),
        ({"eos_token_id": "</s>"}, "eos_token_id '</s>' is not a token id"),
        ({"num_hidden_layers": 10**9}, "tensors cannot be 1000000000 layers"),
        ({"num_hidden_layers": 2}, r"model\.layers\.2\.\S+ is not part of the model"),
        ({"num_hidden_layers": 4}, r"tensor model\.layers\.3\.input_layernorm\.weight is missing"),
        ({"attention_bias": True}, r"q_proj\.bias is missing"),
        ({"intermediate_size": 95}, r"gate_proj\.weight has shape \(96, 64\).*asks for \(95, 64\)"),
    ],
)
def test_configuration_errors_name_the_key(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than the 8 experts"),
        ({"num_local_experts": 7}, r"mlp\.gate\.weight has shape \(8, 64\).*asks for \(7, 64\)"),
        ({"num_local_experts": 10**9}, "tensors cannot be 3000000000 experts in all layers"),
        ({"moe_intermediate_size": 31}, r"experts\.0\.gate_proj\.weight has shape \(32, 64\).*asks for \(31, 64\)"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers is 'all', not a list of layer indices"),
        ({"decoder_sparse_step": 2}, r"mlp\.gate_proj\.weight is missing"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1, not of type bool"),
    ],
)
def test_errors_of_mixtures_name_the_key(tmp_path, mixture, changes, message):
    for path in mixture.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_experts_in_one_tensor_are_named_where_they_are_wrong(tmp_path):
    make_checkpoint(tmp_path, family="mixtral", save_original_format=False)
    edit_config(tmp_path, intermediate_size=95)
    with pytest.raises(ModelLoadError, match=r"gate_up_proj\[0\] has shape \(96, 64\).*asks for \(95, 64\)"):
        load(tmp_path)


def test_config_that_is_not_json(folder):
    (folder / "config.json").write_text("{'hidden_size': 64}")
    with pytest.raises(ModelLoadError, match=r"config\.json: cannot be read as JSON"):
        load(folder)


def test_sliding_window_is_refused_beyond_its_length(tmp_path):
    make_checkpoint(tmp_path, family="mistral", sliding_window=128)
    with pytest.raises(InvalidConfig, match=r"sliding window of 128 tokens.*--max-model-len 128"):
        load(tmp_path)
    assert load(tmp_path, max_model_len=128).model_info.max_model_len == 128
    # A folder that does not say has the first Mistral's window, as in transformers.
    edit_config(tmp_path, removed=("sliding_window",))
    assert read_hf_config(tmp_path).sliding_window == 4096


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("model-*.safetensors"))
    assert len(found) > 2
    return found


def test_truncated_shard(folder):
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=rf"{path.name}: truncated or not a valid safetensors file"):
        load(folder)


def test_missing_shard(folder):
    path = shards(folder)[0]
    path.unlink()
    with pytest.raises(ModelLoadError, match=rf"{path.name}: the file is missing; \S+ needs it for model\."):
        load(folder)


def test_shard_without_a_tensor_of_the_index(folder):
    path = shards(folder)[0]
    tensors = load_file(path)
    lost = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, path)
    with pytest.raises(ModelLoadError, match=rf"{path.name}: tensor {lost} is missing"):
        load(folder)


@pytest.mark.parametrize("file_name", ["../other/model.safetensors", "/etc/passwd", 7])
def test_index_may_not_reach_out_of_its_folder(folder, file_name):
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = file_name
    index.write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match="is not the name of a file beside it"):
        load(folder)


def test_tensor_of_another_type(tmp_path):
    make_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, path)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has type I32.*supported are BF16, F16, F32"):
        load(tmp_path)


def test_damaged_headers_give_one_line_each(tmp_path):
    """300 files with some bytes of the header changed: they load, or fail with a ModelLoadError."""
    make_checkpoint(tmp_path, num_hidden_layers=1)
    path = tmp_path / "model.safetensors"
    intact = path.read_bytes()
    header_bytes = 8 + int.from_bytes(intact[:8], "little")
    rng = random.Random(0)
    failures = 0
    for _ in range(300):
        damaged = bytearray(intact)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(header_bytes)] = rng.randrange(256)
        path.write_bytes(damaged)
        message = load_error(tmp_path)
        if message is not None:
            failures += 1
            assert str(tmp_path) in message
            assert "\n" not in message
    assert failures > 250


def load_error(folder: Path) -> str | None:
    try:
        load(folder)
    except ModelLoadError as error:
        return str(error)
    return None
