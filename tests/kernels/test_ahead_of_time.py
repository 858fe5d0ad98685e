"""Every kernel compiled for GPUs that are not there: it does not spill, it fits, and it uses the GPU's instructions."""

import importlib
import os

import pytest
import torch

from pageloom_kernels import AttentionBatch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="with the interpreter on, there is no compiler"
)

SHARED_LIMIT_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
MATRIX_INSTRUCTION = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}
BY_CAPABILITY = pytest.mark.parametrize("capability", [80, 90, 100], ids=lambda capability: f"sm_{capability}")


@pytest.fixture
def compile_all(monkeypatch, tmp_path):
    """Runs a host function on meta tensors and gives the binaries of what it would launch, by kernel name."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # otherwise Triton warns that its default will change
    from tests.kernels.ahead_of_time import LaunchRecorder, compile_launch

    def compile_all(capability, function, *args, **kwargs):
        recorders = []
        for module_name in (
            "paged_attention.decode_kernel",
            "paged_attention.reduce_kernel",
            "paged_attention.prefill_kernel",
            "paged_attention.rotary_write_kernel",
            "rms_norm.kernel",
            "silu_mul.kernel",
            "expert_mlp.gate_up_kernel",
            "expert_mlp.down_kernel",
        ):
            module = importlib.import_module(f"pageloom_kernels.{module_name}")
            name = module_name.removesuffix(".kernel").rpartition(".")[2].removesuffix("_kernel") + "_kernel"
            recorders.append((name, LaunchRecorder(getattr(module, name))))
            monkeypatch.setattr(module, name, recorders[-1][1])
        function(*args, **kwargs)
        binaries = {
            name: compile_launch(launch, capability, tmp_path)
            for name, recorder in recorders
            for launch in recorder.launches
        }
        for name, binary in binaries.items():
            assert binary.stack_bytes == binary.local_bytes == 0, f"{name} spills"
            assert binary.count("LDL") == binary.count("STL") == 0, f"{name} spills"
            assert binary.shared_bytes <= SHARED_LIMIT_BYTES[capability], f"{name} does not fit"
        return binaries

    return compile_all


def meta(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta")


def meta_batch(*, num_decodes, num_extends, query_len, seq_len, block_size):
    num_seqs, num_tokens = num_decodes + num_extends, num_decodes + num_extends * query_len
    return AttentionBatch(
        block_tables=meta(num_seqs, seq_len // block_size, dtype=torch.int32),
        seq_lens=meta(num_seqs, dtype=torch.int32),
        query_start=meta(num_seqs + 1, dtype=torch.int32),
        num_decodes=num_decodes,
        max_query_len=query_len,
        max_seq_len=seq_len,
        positions=meta(num_tokens, dtype=torch.int64),
        slot_mapping=meta(num_tokens, dtype=torch.int64),
    )


def attention_arguments(*, query_len, num_heads, num_kv_heads, head_dim, block_size, dtype):
    batch = meta_batch(num_decodes=32, num_extends=4, query_len=query_len, seq_len=4096, block_size=block_size)
    query = meta(32 + 4 * query_len, num_heads, head_dim, dtype=dtype)
    return query, meta(999, 2, num_kv_heads, block_size, head_dim, dtype=dtype), batch


LLAMA_8B = {"query_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "block_size": 64}
SMOLLM2_SHORT = {"query_len": 64, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 16}


@pytest.mark.parametrize(
    ("capability", "shape"),
    [(80, LLAMA_8B), (90, LLAMA_8B), (100, LLAMA_8B), (90, SMOLLM2_SHORT)],
    ids=["sm_80-llama-8b", "sm_90-llama-8b", "sm_100-llama-8b", "sm_90-smollm2-short"],
)
def test_attention(compile_all, capability, shape):
    from pageloom_kernels.paged_attention.launch import paged_attention
    from pageloom_kernels.paged_attention.tuning import Gpu

    arguments = attention_arguments(**shape, dtype=torch.bfloat16)
    binaries = compile_all(
        capability, paged_attention, *arguments, scale=0.1, gpu=Gpu(capability=capability, num_sms=132)
    )
    assert set(binaries) == {"decode_kernel", "reduce_kernel", "prefill_kernel"}
    assert binaries["decode_kernel"].count("HMMA")
    assert binaries["prefill_kernel"].count(MATRIX_INSTRUCTION[capability])
    for name in ("decode_kernel", "prefill_kernel"):
        assert binaries[name].count(r"LDGSTS\S*\.128"), f"{name} does not copy KV in 16-byte pieces"


def test_exact_fp32_attention(compile_all):
    from pageloom_kernels.paged_attention.launch import paged_attention
    from pageloom_kernels.paged_attention.tuning import Gpu

    arguments = attention_arguments(**SMOLLM2_SHORT, dtype=torch.float32)
    binaries = compile_all(90, paged_attention, *arguments, scale=0.1, gpu=Gpu(capability=90, num_sms=132))
    for name in ("decode_kernel", "prefill_kernel"):
        assert not binaries[name].count("HG?MMA"), f"{name} rounds its products to TF32"


@BY_CAPABILITY
def test_rotary_write(compile_all, capability):
    from pageloom_kernels.paged_attention.rotary_write_kernel import rotary_write_kv

    batch = meta_batch(num_decodes=32, num_extends=0, query_len=1, seq_len=4096, block_size=64)
    query, key, value = meta(32, 48, 128, dtype=torch.bfloat16).tensor_split((32, 40), dim=1)
    tables = meta(4096, 64, dtype=torch.float32)
    cache = meta(999, 2, 8, 64, 128, dtype=torch.bfloat16)
    binaries = compile_all(capability, rotary_write_kv, query, key, value, tables, tables, cache, batch)
    assert binaries["rotary_write_kernel"].count(r"LDG\S*\.128")


@BY_CAPABILITY
def test_elementwise(compile_all, capability):
    from pageloom_kernels.rms_norm.kernel import rms_norm
    from pageloom_kernels.silu_mul.kernel import silu_mul

    def both(x, weight, gate_up):
        rms_norm(x, weight, eps=1e-5, residual=x)
        silu_mul(gate_up)

    x, weight = meta(32, 4096, dtype=torch.bfloat16), meta(4096, dtype=torch.bfloat16)
    binaries = compile_all(capability, both, x, weight, meta(32, 28672, dtype=torch.bfloat16))
    for name in ("rms_norm_kernel", "silu_mul_kernel"):
        assert binaries[name].count(r"LDG\S*\.128"), f"{name} does not load in 16-byte pieces"
        assert binaries[name].count(r"STG\S*\.128"), f"{name} does not store in 16-byte pieces"


def run_experts(*, num_tokens, num_experts, experts_per_token, hidden, inner, dtype):
    """Sorting meta tensors is not possible: the blocks are those of an even choice."""
    from pageloom_kernels.expert_mlp.down_kernel import down_weighted
    from pageloom_kernels.expert_mlp.gate_up_kernel import gate_up_silu
    from pageloom_kernels.expert_mlp.grouping import ExpertBlocks
    from pageloom_kernels.expert_mlp.tuning import expert_tuning

    num_pairs = num_tokens * experts_per_token
    tuning = expert_tuning(num_pairs=num_pairs, num_experts=num_experts, itemsize=dtype.itemsize)
    lengths = {"pairs": num_pairs, "first_pair": num_experts + 1, "first_block": num_experts + 1, "block_expert": 999}
    blocks = ExpertBlocks(**{name: meta(length, dtype=torch.int64) for name, length in lengths.items()})
    x = meta(num_tokens, hidden, dtype=dtype)
    gate_up, down = meta(num_experts, 2 * inner, hidden, dtype=dtype), meta(num_experts, hidden, inner, dtype=dtype)
    output = gate_up_silu(x, gate_up, blocks, experts_per_token=experts_per_token, shape=tuning.gate_up)
    weights = meta(num_tokens, experts_per_token, dtype=torch.float32)
    down_weighted(output, down, weights, blocks, shape=tuning.down)


QWEN3_30B = {"num_experts": 128, "experts_per_token": 8, "hidden": 2048, "inner": 768}
MIXTRAL_8X7B = {"num_experts": 8, "experts_per_token": 2, "hidden": 4096, "inner": 14336}


@pytest.mark.parametrize(
    ("capability", "shape", "num_tokens"),
    [(80, MIXTRAL_8X7B, 200), (90, QWEN3_30B, 64), (90, QWEN3_30B, 4096), (100, QWEN3_30B, 4096)],
    ids=["sm_80-mixtral", "sm_90-qwen3-decode", "sm_90-qwen3", "sm_100-qwen3"],
)
def test_experts(compile_all, capability, shape, num_tokens):
    binaries = compile_all(capability, run_experts, num_tokens=num_tokens, dtype=torch.bfloat16, **shape)
    assert set(binaries) == {"gate_up_kernel", "down_kernel"}
    instruction = "HMMA" if num_tokens == 64 else MATRIX_INSTRUCTION[capability]
    for name, binary in binaries.items():
        assert binary.count(instruction), f"{name} does not use the tensor cores"
        assert binary.count(r"LDGSTS\S*\.128"), f"{name} does not copy weights in 16-byte pieces"


def test_exact_fp32_experts(compile_all):
    binaries = compile_all(90, run_experts, num_tokens=64, dtype=torch.float32, **QWEN3_30B)
    for name, binary in binaries.items():
        assert not binary.count("HG?MMA"), f"{name} rounds its products to TF32"
