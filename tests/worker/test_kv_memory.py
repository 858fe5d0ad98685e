"""How many KV blocks a worker takes, from its settings and from what the host has left."""

import pytest
import torch

from pageloom.config import WorkerConfig
from pageloom.errors import InvalidConfig
from worker_svc import host, kv_cache
from worker_svc.kv_cache import allocate_kv_cache, block_bytes, count_blocks
from worker_svc.models.config import LlamaConfig
from worker_svc.models.rope import RopeConfig

MODEL = LlamaConfig(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
    max_position_embeddings=128,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    attention_output_bias=False,
    mlp_bias=False,
    experts=None,
)
GIB = 1 << 30


def config(**settings) -> WorkerConfig:
    return WorkerConfig(model="", scheduler_address="", **settings)


def test_bytes_of_a_block():
    assert block_bytes((MODEL,), 16, torch.float32) == 3 * 2 * 2 * 16 * 16 * 4
    assert block_bytes((MODEL,), 64, torch.bfloat16) == 3 * 2 * 2 * 64 * 16 * 2


@pytest.mark.parametrize(("available", "expected"), [(100 * GIB, 4 * GIB), (8 * GIB, 2 * GIB)])
def test_a_cpu_gives_a_quarter_of_its_memory_at_most_4_gib(monkeypatch, available, expected):
    monkeypatch.setattr(kv_cache, "available_memory_bytes", lambda: available)
    assert count_blocks(config(), 1 << 20, None) == expected >> 20


def test_settings_go_before_measurements():
    assert count_blocks(config(num_blocks=5, kv_cache_memory_bytes=GIB), 1 << 20, 7 * GIB) == 5
    assert count_blocks(config(kv_cache_memory_bytes=GIB), 1 << 20, 7 * GIB) == 1024
    assert count_blocks(config(), 1 << 20, 7 * GIB) == 7 * 1024


def test_no_memory_left_is_an_error():
    with pytest.raises(InvalidConfig, match=r"0 bytes of memory are left.*--gpu-memory-utilization"):
        count_blocks(config(), 1 << 20, -5)


def test_blocks_are_zero_and_shared_with_the_layers():
    cache = allocate_kv_cache(MODEL, num_blocks=4, block_size=16, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert cache.info.kv_bytes == cache.blocks.nbytes == 4 * block_bytes((MODEL,), 16, torch.bfloat16)
    assert not cache.blocks.any()
    cache.layers[1][2] = 3.0
    cache.copy((2,), (0,))
    assert cache.blocks[1, 0].eq(3.0).all()
    assert cache.blocks[1, 0].shape == (2, 2, 16, 16)
    assert not cache.blocks[0].any()


def test_absurd_sizes_are_a_clear_error():
    with pytest.raises(InvalidConfig, match="cannot be allocated; lower --num-gpu-blocks-override"):
        allocate_kv_cache(MODEL, num_blocks=1 << 40, block_size=16, dtype=torch.float32, device=torch.device("cpu"))


def test_container_limits_bound_cores_and_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   500 kB\n")
    unlimited = host.usable_cores()
    assert host.available_memory_bytes() == 500 * 1024
    for name, text in (("cpu.max", "max 100000\n"), ("memory.max", "max\n"), ("memory.current", "1000\n")):
        (tmp_path / "cgroup" / name).write_text(text)
    assert (host.usable_cores(), host.available_memory_bytes()) == (unlimited, 500 * 1024)
    (tmp_path / "cgroup" / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cgroup" / "memory.max").write_text("300000\n")
    assert (host.usable_cores(), host.available_memory_bytes()) == (1, 299_000)
