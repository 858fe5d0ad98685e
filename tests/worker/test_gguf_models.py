"""Models from GGUF files: the same tokens as the model they were made of, every ggml type, and what is refused."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError
from pageloom.gguf_file import read_gguf
from tests.support.gguf_files import write_gguf
from tests.support.plan_driver import PlanDriver
from tests.support.reference_model import reference_greedy
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.gguf_config import gguf_eos_token_ids
from worker_svc.gguf_weights import GgufWeights
from worker_svc.models.rope import Llama3Scaling, RopeConfig, inverse_frequencies
from worker_svc.runner import ModelRunner, load_runner

DEQUANTIZED = sorted({GGMLQuantizationType.F32, GGMLQuantizationType.F16, *gguf.quants._type_traits})
PROMPTS = [[1, 2, 3], [*range(100, 200)], [7]]


def load(path, **settings) -> ModelRunner:
    limits = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 4, "num_threads": 1}
    values = {**limits, "dtype": "float32", "device": "cpu", **settings}
    return load_runner(WorkerConfig(model=str(path), scheduler_address="", **values), lambda _done, _total: None)


@pytest.mark.parametrize(
    "shape",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
        {"family": "qwen2"},
        {"family": "mixtral"},
        {"family": "qwen2_moe"},
        {"family": "qwen3_moe", "mlp_only_layers": [0]},
    ],
)
def test_equals_the_model_it_was_made_of(tmp_path, shape):
    reference = make_checkpoint(tmp_path / "hf", **shape)
    write_gguf(tmp_path / "model.gguf", reference)
    outputs = PlanDriver(load(tmp_path / "model.gguf")).generate(PROMPTS, 16)
    assert outputs == reference_greedy(PROMPTS, 16, reference)


def test_old_files_have_tensors_of_each_expert(tmp_path):
    reference = make_checkpoint(tmp_path / "hf", family="mixtral")
    write_gguf(tmp_path / "new.gguf", reference)
    write_gguf(tmp_path / "old.gguf", reference, split_experts=True)
    old, new = GgufWeights(read_gguf(tmp_path / "old.gguf"), {}), GgufWeights(read_gguf(tmp_path / "new.gguf"), {})
    assert set(old.names) == set(new.names)
    for name in old.names:
        in_old, in_new = torch.full(old.shape(name), torch.nan), torch.full(new.shape(name), torch.nan)
        old.read(name, in_old)
        new.read(name, in_new)
        assert torch.equal(in_old, in_new)


def test_llama3_frequencies_come_as_a_tensor(tmp_path):
    rope = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    reference = make_checkpoint(tmp_path / "hf", rope_parameters=rope)
    plain = inverse_frequencies(RopeConfig(theta=10000.0), 16)
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    scaled = inverse_frequencies(RopeConfig(theta=10000.0, scaling=scaling), 16)
    write_gguf(tmp_path / "model.gguf", reference, rope_divisors=(plain / scaled).tolist())
    outputs = PlanDriver(load(tmp_path / "model.gguf")).generate(PROMPTS, 16)
    assert outputs == reference_greedy(PROMPTS, 16, reference)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_by_metadata(tmp_path, kind):
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64} if kind == "yarn" else {"factor": 4.0}
    rope = {"rope_type": kind, "rope_theta": 10000.0, **scaling}
    reference = make_checkpoint(tmp_path / "hf", rope_parameters=rope)
    metadata = {"llama__rope__scaling__type": kind, "llama__rope__scaling__factor": 4.0}
    if kind == "yarn":
        metadata["llama__rope__scaling__original_context_length"] = 64
    write_gguf(tmp_path / "model.gguf", reference, **metadata)
    outputs = PlanDriver(load(tmp_path / "model.gguf")).generate(PROMPTS, 16)
    assert outputs == reference_greedy(PROMPTS, 16, reference)


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_1", "BF16", "F16"])
def test_quantized_weights_equal_their_dequantized_copy(tmp_path, quantization):
    kind = GGMLQuantizationType[quantization]
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", reference, quantization=kind)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind)))
    runner = load(tmp_path / "model.gguf")
    assert PlanDriver(runner).generate(PROMPTS, 16) == reference_greedy(PROMPTS, 16, reference)


@pytest.mark.parametrize("kind", DEQUANTIZED, ids=lambda kind: kind.name)
def test_every_ggml_type_in_pieces(tmp_path, monkeypatch, kind):
    """Random bytes as a matrix: what is read some rows at a time equals what gguf makes of the whole."""
    monkeypatch.setattr("worker_svc.gguf_weights._PIECE_ELEMENTS", 1024)
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (11, 512 // block_elements * block_bytes), np.uint8)
    # Positive exponents only: infinities and NaN among the scales would hide the rest.
    raw &= 0xBF if kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.BF16) else 0x3F
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = GgufWeights(read_gguf(tmp_path / "one.gguf"), {})
    out = torch.full((11, 512), torch.nan)
    weights.read("model.embed_tokens.weight", out)
    expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_quantized_models_run_in_a_type_the_cpu_has(tmp_path):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "q8.gguf", reference, quantization=GGMLQuantizationType.Q8_0)
    write_gguf(tmp_path / "f32.gguf", reference)
    has_bfloat16 = torch.cpu.get_capabilities().get("avx512_bf16", False)
    assert load(tmp_path / "q8.gguf", dtype="auto").model_info.dtype == ("bfloat16" if has_bfloat16 else "float32")
    assert load(tmp_path / "f32.gguf", dtype="auto").model_info.dtype == "float32"


def test_damaged_scales_are_named(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, make_checkpoint(tmp_path / "hf"), quantization=GGMLQuantizationType.Q8_0)
    damaged = bytearray(path.read_bytes())
    offset = read_gguf(path).tensors["blk.1.ffn_down.weight"].offset
    damaged[offset : offset + 2] = b"\xff\xff"
    path.write_bytes(damaged)
    with pytest.raises(ModelLoadError, match=r"tensor blk\.1\.ffn_down\.weight holds values that are not finite"):
        load(path)


def test_missing_tensor_is_named(tmp_path):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", reference, skip=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelLoadError, match=r"model\.gguf: tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama__expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama__expert_count": 2, "llama__expert_used_count": 3}, "expert_used_count is 3, more than the 2 experts"),
        (
            {"llama__expert_count": 2, "llama__expert_used_count": 2, "llama__expert_gating_func": 2},
            "expert_gating_func other than 1 is not supported",
        ),
        (
            {"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0},
            "'longrope' is not supported",
        ),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count other than the head's 16"),
        ({"llama__feed_forward_length": 100}, r"blk\.0\.ffn_gate\.weight has shape \(96, 64\).*\(100, 64\)"),
        ({"llama__block_count": 10**9}, "cannot be 1000000000 layers"),
        ({"llama__block_count": 2}, r"blk\.2\.\w+\.weight is not part of the model"),
        ({"llama__embedding_length": 0}, "llama.embedding_length is 0, it must be above 0"),
        ({"llama__context_length": "long"}, "llama.context_length is 'long', not of type int"),
        ({"general__architecture": "gemma3"}, "architecture 'gemma3' is not supported.*llama, qwen2"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, metadata, message):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", reference, **metadata)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path / "model.gguf")


def test_sliding_window_is_refused_beyond_its_length(tmp_path):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "model.gguf", reference, llama__attention__sliding_window=100)
    with pytest.raises(InvalidConfig, match=r"sliding window of 100 tokens.*--max-model-len 100"):
        load(tmp_path / "model.gguf")
    assert load(tmp_path / "model.gguf", max_model_len=100).model_info.max_model_len == 100


def test_end_of_turn_tokens_of_chat_models(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "chat.gguf", "llama")
    writer.add_token_list(["<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "a", "<|end|>"])
    writer.add_token_types([3, 3, 3, 1, 1])
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # 4 has the text of an end of turn but is an ordinary token.
    assert gguf_eos_token_ids(read_gguf(tmp_path / "chat.gguf")) == (0, 1, 2)
