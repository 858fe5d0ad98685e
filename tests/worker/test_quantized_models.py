"""GGUF models whose weights stay quantized: as good as dequantized ones, the same in any batch, and never by half."""

import random

import pytest
from gguf import GGMLQuantizationType

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig, ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom_kernels.cpu.library import NoCpuLibrary, load_cpu_library
from tests.support.gguf_files import write_gguf
from tests.support.plan_driver import PlanDriver
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.runner import ModelRunner, load_runner

Q4_1, Q8_0, F16 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16


@pytest.fixture(autouse=True)
def library():
    try:
        return load_cpu_library()
    except NoCpuLibrary as error:
        pytest.skip(str(error))


def load(path, **settings) -> ModelRunner:
    values = {"num_blocks": 64, "max_num_seqs": 4, "dtype": "bfloat16", "device": "cpu", **settings}
    settings = {"cpu_kernels": "auto", "quantization": "auto", **values}
    return load_runner(WorkerConfig(model=str(path), scheduler_address="", **settings), lambda _done, _total: None)


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 211) for _ in range(rng.randint(1, 40))] for _ in range(count)]


@pytest.mark.parametrize(
    ("shape", "quantization", "exceptions"),
    [
        ({}, Q8_0, {}),
        ({"tie_word_embeddings": True}, Q8_0, {}),
        ({"family": "qwen2"}, Q8_0, {}),
        ({"family": "qwen3_moe"}, Q8_0, {}),
        # One matrix of three that are multiplied at once: in another type, and in one that is no blocks.
        ({"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}, Q8_0, {"attn_v": Q4_1}),
        ({}, Q8_0, {"attn_v": F16, "token_embd": F16}),
    ],
)
def test_tokens_are_those_of_the_dequantized_weights(tmp_path, shape, quantization, exceptions):
    path = tmp_path / "model.gguf"
    write_gguf(path, make_checkpoint(tmp_path / "hf", **shape), quantization=quantization, exceptions=exceptions)
    prompts = random_prompts(60)
    kept = PlanDriver(load(path, quantization="gguf")).generate(prompts, 1)
    dequantized = PlanDriver(load(path, quantization="none")).generate(prompts, 1)
    # What is left is that rows are multiplied as bytes: it turns a token where two are about as likely.
    assert sum(a == b for a, b in zip(kept, dequantized, strict=True)) >= 50


def test_tokens_do_not_depend_on_the_batch(tmp_path):
    write_gguf(tmp_path / "model.gguf", make_checkpoint(tmp_path / "hf"), quantization=Q4_1)
    runner, prompts = load(tmp_path / "model.gguf"), random_prompts(12)
    together = PlanDriver(runner).generate(prompts, 12)
    alone = [PlanDriver(runner, epoch=2 + index).generate([prompt], 12)[0] for index, prompt in enumerate(prompts)]
    assert together == alone


def test_weights_are_as_large_as_in_the_file(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, make_checkpoint(tmp_path / "hf"), quantization=Q8_0)
    tensors = read_gguf(path).tensors.values()
    matrices_bytes = sum(tensor.num_bytes for tensor in tensors if len(tensor.shape) > 1)
    norms_bytes = sum(tensor.num_bytes // 2 for tensor in tensors if len(tensor.shape) == 1)
    kept, dequantized = load(path).model_info, load(path, quantization="none").model_info
    assert kept.weights_bytes == matrices_bytes + norms_bytes
    assert dequantized.weights_bytes > 1.8 * kept.weights_bytes
    # Their KV values differ.
    assert kept.digest != dequantized.digest


def test_auto_keeps_blocks_where_it_can(tmp_path):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "q8.gguf", reference, quantization=Q8_0)
    write_gguf(tmp_path / "f16.gguf", reference, quantization=F16)
    sizes = {
        name: load(tmp_path / file, **settings).model_info.weights_bytes
        for name, file, settings in (
            ("kept", "q8.gguf", {}),
            ("float32", "q8.gguf", {"dtype": "float32"}),
            ("torch", "q8.gguf", {"cpu_kernels": "torch"}),
            ("f16", "f16.gguf", {}),
        )
    }
    assert sizes["kept"] < 0.6 * sizes["torch"]
    assert sizes["f16"] == sizes["torch"] == sizes["float32"] // 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float32"}, "only the C\\+\\+ kernels multiply them"),
        ({"block_size": 16}, "only the C\\+\\+ kernels multiply them"),
        ({"cpu_kernels": "torch"}, "only the C\\+\\+ kernels multiply them"),
        ({"model": "hf"}, "the model is not a GGUF file with weights of the types Q4_0"),
        ({"model": "f16.gguf"}, "the model is not a GGUF file with weights of the types Q4_0"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, message):
    reference = make_checkpoint(tmp_path / "hf")
    write_gguf(tmp_path / "q8.gguf", reference, quantization=Q8_0)
    write_gguf(tmp_path / "f16.gguf", reference, quantization=F16)
    model = settings.pop("model", "q8.gguf")
    with pytest.raises(InvalidConfig, match=f"--quantization gguf: the weights cannot stay quantized: {message}"):
        load(tmp_path / model, quantization="gguf", **settings)


def test_damaged_scales_are_named(tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, make_checkpoint(tmp_path / "hf"), quantization=Q8_0)
    damaged = bytearray(path.read_bytes())
    offset = read_gguf(path).tensors["blk.1.ffn_down.weight"].offset
    damaged[offset : offset + 2] = b"\xff\xff"
    path.write_bytes(damaged)
    with pytest.raises(ModelLoadError, match=r"tensor blk\.1\.ffn_down\.weight holds values that are not finite"):
        load(path)
