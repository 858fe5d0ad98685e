"""What a rank reads of a checkpoint: parts that together are the whole, and no more than its share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pageloom.errors import InvalidConfig
from pageloom.model_files import locate_model
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.checkpoint import Checkpoint
from worker_svc.loader import load_model, open_checkpoint
from worker_svc.models.llama import EMBEDDING
from worker_svc.parallel.layout import Layout, check_layout
from worker_svc.parallel.ranks import RankGroup
from worker_svc.parallel.sharded_weights import shard_checkpoint


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    out = torch.empty(checkpoint.weights.shape(name))
    checkpoint.weights.read(name, out)
    return out


def loaded_bytes(checkpoint: Checkpoint, layout: Layout) -> int:
    _, weights_bytes = load_model(
        shard_checkpoint(checkpoint, layout),
        num_positions=32,
        dtype=torch.float32,
        device=torch.device("cpu"),
        cpu_pool=None,
        ggml_types={},
        progress=lambda _done, _total: None,
        ranks=RankGroup(layout, checkpoint.config.vocab_size, None),
    )
    return weights_bytes


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("self_attn.q_proj.weight", 0),
        ("self_attn.k_proj.weight", 0),
        ("self_attn.o_proj.weight", 1),
        ("mlp.up_proj.weight", 0),
        ("mlp.down_proj.weight", 1),
    ],
)
def test_parts_of_a_gguf_file_are_the_whole(name: str, dim: int):
    """The default model: quantized blocks of 32 columns, and heads that llama.cpp interleaves."""
    checkpoint = open_checkpoint(locate_model(""))
    name = f"model.layers.7.{name}"
    parts = [read(shard_checkpoint(checkpoint, Layout(tensor_size=3, rank=rank)), name) for rank in range(3)]
    assert torch.equal(torch.cat(parts, dim=dim), read(checkpoint, name))


def test_a_part_may_begin_within_a_block():
    checkpoint = open_checkpoint(locate_model(""))
    whole, name = read(checkpoint, "model.layers.0.mlp.down_proj.weight"), "model.layers.0.mlp.down_proj.weight"
    parts = [read(shard_checkpoint(checkpoint, Layout(tensor_size=512, rank=rank)), name) for rank in (0, 100, 511)]
    assert all(
        torch.equal(part, whole[:, 3 * rank : 3 * rank + 3]) for rank, part in zip((0, 100, 511), parts, strict=True)
    )


def test_stages_divide_layers_and_a_vocabulary_need_not_be_even(tmp_path: Path):
    make_checkpoint(tmp_path)
    checkpoint = open_checkpoint(locate_model(str(tmp_path)))
    first, last = (shard_checkpoint(checkpoint, Layout(pipeline_size=2, rank=rank)) for rank in (1, 0))
    assert (first.config.num_layers, last.config.num_layers) == (2, 1)
    name = "mlp.up_proj.weight"
    assert torch.equal(read(last, f"model.layers.0.{name}"), read(checkpoint, f"model.layers.2.{name}"))
    assert "lm_head.weight" not in first.weights.names
    assert EMBEDDING not in last.weights.names
    halves = [shard_checkpoint(checkpoint, Layout(tensor_size=2, rank=rank)) for rank in range(2)]
    assert [half.weights.shape(EMBEDDING)[0] for half in halves] == [106, 105]


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_rank_holds_its_share(tmp_path: Path, family: str):
    make_checkpoint(tmp_path, family=family)
    checkpoint = open_checkpoint(locate_model(str(tmp_path)))
    whole = loaded_bytes(checkpoint, Layout())
    for rank in range(2):
        assert loaded_bytes(checkpoint, Layout(tensor_size=2, rank=rank)) <= 0.55 * whole


def test_a_rank_holds_its_share_of_the_default_model():
    """It has nine heads, so three ranks are the fewest."""
    checkpoint = open_checkpoint(locate_model(""))
    assert loaded_bytes(checkpoint, Layout(tensor_size=3, rank=2)) <= 0.34 * loaded_bytes(checkpoint, Layout())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor_size": 3}, "--tensor-parallel-size 3 does not divide the model's 4 heads.*sizes that do: 1, 2, 4"),
        ({"pipeline_size": 4}, "--pipeline-parallel-size 4 is more than the model's 3 layers; sizes 1 to 3 fit"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path: Path, sizes: dict[str, int], message: str):
    make_checkpoint(tmp_path)
    config = open_checkpoint(locate_model(str(tmp_path))).config
    with pytest.raises(InvalidConfig, match=message):
        check_layout(Layout(**sizes), config)
