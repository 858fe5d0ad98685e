"""EAGLE-3 heads on disk: what is read, and what is said of those that do not fit the model."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageloom.errors import ModelLoadError
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tiny_eagle3 import CONFIG, DRAFT_VOCAB, HIDDEN, VOCAB, make_eagle3
from worker_svc.eagle3_checkpoint import is_eagle3, load_eagle3
from worker_svc.hf_config import read_hf_config


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    make_checkpoint(folder, num_hidden_layers=8)
    assert not is_eagle3(folder)
    return read_hf_config(folder).config


def load(folder, target):
    return load_eagle3(folder, target, num_positions=64, dtype=torch.float32, device=torch.device("cpu"))[0]


def change(folder, **tensors) -> None:
    """Writes these tensors into the file; None takes one out."""
    path = folder / "model.safetensors"
    changed = load_file(path) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


def test_a_published_layout(tmp_path, target):
    tensors = make_eagle3(tmp_path)
    assert is_eagle3(tmp_path)
    head = load(tmp_path, target)
    assert torch.equal(head.token_ids, tensors["d2t"] + torch.arange(DRAFT_VOCAB))
    assert torch.equal(torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, head.token_ids, True), tensors["t2d"])
    assert torch.equal(head.qkv.weight[:64], tensors["midlayer.self_attn.q_proj.weight"])
    assert head.embedding is None
    assert head.config.tap_layers == (2, 4, 5)


def test_names_of_other_tools(tmp_path, target):
    """SGLang's prefix; `layers.0` and a nested configuration as the speculators library writes them."""
    tensors = make_eagle3(tmp_path, with_embedding=True)
    renamed = {f"model.{name}".replace("midlayer", "layers.0"): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    head = load(tmp_path, target)
    assert head.embedding is not None
    assert torch.equal(head.embedding, tensors["embed_tokens.weight"])
    nested = {
        "architectures": ["Eagle3Speculator"], "transformer_layer_config": CONFIG, "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 0, 7],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert is_eagle3(tmp_path)
    config = load(tmp_path, target).config
    assert (config.tap_layers, config.norm_before_residual) == ((1, 0, 7), True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; an EAGLE-3 head has 1"),
        ({"vocab_size": 212}, "vocab_size is 212, and the model's is 211"),
        ({"target_hidden_size": 128}, "target_hidden_size is 128, and the model's hidden_size is 64"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"is \[1, 2\]; it must be 3 layers from 0 to 7"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}, r"is \[1, 2, 8\]; it must be 3 layers from 0 to 7"),
        ({"draft_vocab_size": 100}, r"lm_head.weight has shape \(120, 64\); config.json asks for \(100, 64\)"),
        ({"hidden_size": 32}, "embed_tokens.weight is missing; the model's own has 64 dimensions, and the head 32"),
    ],
)
def test_a_head_of_another_model(tmp_path, target, overrides, message):
    make_eagle3(tmp_path, **overrides)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path, target)


def test_a_model_of_few_layers_needs_to_know_which(tmp_path, target):
    make_eagle3(tmp_path)
    with pytest.raises(ModelLoadError, match=r"is \[2, 1, -1\]; it must be 3 layers from 0 to 1"):
        load(tmp_path, replace(target, num_layers=2))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.weight": None}, "tensor fc.weight is missing; this is no EAGLE-3 head"),
        ({"d2t": None}, "tensor d2t is missing; without it draft_vocab_size, 120, must be the model's vocab_size, 211"),
        ({"d2t": torch.zeros(5, dtype=torch.int64)}, r"tensor d2t has shape \(5,\); config.json asks for \(120,\)"),
        ({"d2t": torch.full((DRAFT_VOCAB,), 92)}, "names a token outside the model's vocabulary of 211"),
        ({"d2t": torch.zeros(DRAFT_VOCAB)}, "tensor d2t has type torch.float32, it must be int64"),
        ({"head.weight": torch.zeros(HIDDEN)}, "tensor head.weight is not part of an EAGLE-3 head"),
    ],
)
def test_a_damaged_head(tmp_path, target, tensors, message):
    make_eagle3(tmp_path)
    change(tmp_path, **tensors)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path, target)
