"""From a folder to an EAGLE-3 head: the layout of SafeAILab/EAGLE, which vLLM and SGLang read too, and `speculators`'.

`midlayer.*` (or `layers.0.*`) is the layer, `fc.weight` the fusion of three hidden states, `norm.weight` and
`lm_head.weight` the head over a reduced vocabulary, whose token i is the model's i + d2t[i]; `t2d` says the same from
the other side. `embed_tokens.weight` may be missing: it is the model's then.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pageloom.errors import ModelLoadError
from worker_svc.hf_config import llama_config
from worker_svc.json_object import JsonObject
from worker_svc.models.config import LlamaConfig
from worker_svc.models.eagle3 import NUM_TAPS, Eagle3Config, Eagle3Head
from worker_svc.safetensors_weights import SafetensorsWeights

_TAP_KEY = "eagle_aux_hidden_state_layer_ids"
_D2T, _T2D, _EMBEDDING = "d2t", "t2d", "embed_tokens.weight"


def is_eagle3(folder: Path) -> bool:
    """Whether config.json describes such a head."""
    values = JsonObject.read(folder / "config.json")
    named = values.values.get("architectures")
    by_name = isinstance(named, list) and any(isinstance(name, str) and "eagle3" in name.lower() for name in named)
    return by_name or "draft_vocab_size" in values.values


def load_eagle3(
    folder: Path, target: LlamaConfig, *, num_positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[Eagle3Head, int]:
    """A head for the model `target`, and the bytes of its weights.

    Raises ModelLoadError, naming the file and what does not fit.
    """
    config = read_eagle3_config(folder, target)
    weights = SafetensorsWeights(folder)
    stored = {_plain_name(name): name for name in weights.names}
    head = Eagle3Head(config, num_positions=num_positions, dtype=dtype, device=device)
    destinations = _destinations(head)
    if _EMBEDDING in stored:
        head.embedding = torch.empty(target.vocab_size, config.layer.hidden_size, dtype=dtype, device=device)
        destinations[_EMBEDDING] = head.embedding
    elif config.layer.hidden_size != target.hidden_size:
        raise ModelLoadError(
            f"{folder}: tensor {_EMBEDDING} is missing; the model's own has {target.hidden_size} dimensions, and the "
            f"head {config.layer.hidden_size}"
        )
    _check_names(weights, stored, destinations)
    for name, destination in destinations.items():
        if weights.shape(stored[name]) != tuple(destination.shape):
            raise ModelLoadError(
                f"{weights.describe(stored[name])} has shape {weights.shape(stored[name])}; config.json asks for "
                f"{tuple(destination.shape)}"
            )
        weights.read(stored[name], destination)
    head.token_ids = _token_ids(weights, stored, config, target).to(device)
    weights_bytes = sum(destination.nbytes for destination in destinations.values())
    # Packing replaces the tensors that these are views of.
    del destinations
    head.finish_loading()
    return head, weights_bytes


def read_eagle3_config(folder: Path, target: LlamaConfig) -> Eagle3Config:
    """Reads config.json for a head of the model `target`. Raises ModelLoadError, naming the key."""
    values = JsonObject.read(folder / "config.json")
    shape = values.child("transformer_layer_config")  # where `speculators` has it
    layer = llama_config(shape if shape.values else values, "llama")
    if layer.num_layers != 1:
        raise ModelLoadError(f"{values.path}: num_hidden_layers is {layer.num_layers}; an EAGLE-3 head has 1")
    if layer.vocab_size != target.vocab_size:
        raise ModelLoadError(
            f"{values.path}: vocab_size is {layer.vocab_size}, and the model's is {target.vocab_size}; the head must "
            "be made for the model"
        )
    target_hidden_size = values.count("target_hidden_size", target.hidden_size)
    if target_hidden_size != target.hidden_size:
        raise ModelLoadError(
            f"{values.path}: target_hidden_size is {target_hidden_size}, and the model's hidden_size is "
            f"{target.hidden_size}; the head must be made for the model"
        )
    return Eagle3Config(
        layer=layer,
        target_hidden_size=target_hidden_size,
        draft_vocab_size=values.count("draft_vocab_size", layer.vocab_size),
        tap_layers=_tap_layers(values, target.num_layers),
        norm_before_residual=values.get("norm_before_residual", bool, False),
    )


def _tap_layers(values: JsonObject, num_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs are read; without a word about them those of the EAGLE-3 repository."""
    named = values.values.get(_TAP_KEY) or values.child("eagle_config").values.get(_TAP_KEY)
    layers = named if isinstance(named, list) else [2, num_layers // 2, num_layers - 3]
    if len(layers) != NUM_TAPS or not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in layers):
        raise ModelLoadError(
            f"{values.path}: {_TAP_KEY} is {layers}; it must be {NUM_TAPS} layers from 0 to {num_layers - 1}"
        )
    return layers[0], layers[1], layers[2]


def _plain_name(name: str) -> str:
    return name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)


def _destinations(head: Eagle3Head) -> dict[str, Tensor]:
    destinations = {
        "fc.weight": head.fusion.weight,
        "midlayer.input_layernorm.weight": head.embedding_norm,
        "midlayer.hidden_norm.weight": head.hidden_norm,
        "midlayer.post_attention_layernorm.weight": head.mlp_norm,
        "norm.weight": head.norm,
        "lm_head.weight": head.head.weight,
    }
    layer = head.config.layer
    query_size, kv_size = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    inner, hidden = layer.intermediate_size, layer.hidden_size
    attention, mlp = "midlayer.self_attn", "midlayer.mlp"
    for linear, names, sizes in (
        (head.qkv, [f"{attention}.{part}_proj" for part in "qkv"], [query_size, kv_size, kv_size]),
        (head.output, [f"{attention}.o_proj"], [hidden]),
        (head.gate_up, [f"{mlp}.gate_proj", f"{mlp}.up_proj"], [inner, inner]),
        (head.down, [f"{mlp}.down_proj"], [hidden]),
    ):
        destinations |= zip((f"{name}.weight" for name in names), torch.split(linear.weight, sizes), strict=True)
        if linear.bias is not None:
            destinations |= zip((f"{name}.bias" for name in names), torch.split(linear.bias, sizes), strict=True)
    return destinations


def _check_names(weights: SafetensorsWeights, stored: dict[str, str], destinations: dict[str, Tensor]) -> None:
    for name in destinations:
        if name not in stored:
            raise ModelLoadError(f"{weights.path}: tensor {name} is missing; this is no EAGLE-3 head, or a part of one")
    for name, stored_name in stored.items():
        if name not in destinations and name not in (_D2T, _T2D):
            raise ModelLoadError(f"{weights.describe(stored_name)} is not part of an EAGLE-3 head")


def _token_ids(
    weights: SafetensorsWeights, stored: dict[str, str], config: Eagle3Config, target: LlamaConfig
) -> Tensor:
    """The model's id of each of the head's tokens."""
    token_ids = torch.arange(config.draft_vocab_size)
    if _D2T not in stored:
        if config.draft_vocab_size != target.vocab_size:
            raise ModelLoadError(
                f"{weights.path}: tensor {_D2T} is missing; without it draft_vocab_size, {config.draft_vocab_size}, "
                f"must be the model's vocab_size, {target.vocab_size}"
            )
        return token_ids
    offsets = weights.read_integers(stored[_D2T])
    if offsets.shape != token_ids.shape:
        raise ModelLoadError(
            f"{weights.describe(stored[_D2T])} has shape {tuple(offsets.shape)}; config.json asks for "
            f"{tuple(token_ids.shape)}"
        )
    token_ids += offsets
    if token_ids.min() < 0 or token_ids.max() >= target.vocab_size:
        raise ModelLoadError(
            f"{weights.describe(stored[_D2T])} names a token outside the model's vocabulary of {target.vocab_size}"
        )
    return token_ids
