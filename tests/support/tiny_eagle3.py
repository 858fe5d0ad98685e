"""A small random EAGLE-3 head in the layout of the published ones, and the same head once more, without any cache."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, DRAFT_VOCAB, VOCAB = 64, 96, 4, 2, 16, 120, 211
EPS = 1e-5
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "rms_norm_eps": EPS, "max_position_embeddings": 2048,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def make_eagle3(folder: Path, *, with_embedding: bool = False, **overrides: object) -> dict[str, Tensor]:
    """Saves a head for a model of tiny_checkpoints in `folder` and returns its tensors."""
    generator = torch.Generator().manual_seed(11)

    def matrix(out_features: int, in_features: int) -> Tensor:
        return torch.randn(out_features, in_features, generator=generator) * 0.2

    def norm() -> Tensor:
        return 1 + 0.3 * torch.randn(HIDDEN, generator=generator)

    known = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    tensors = {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": matrix(INNER, HIDDEN),
        "midlayer.mlp.up_proj.weight": matrix(INNER, HIDDEN),
        "midlayer.mlp.down_proj.weight": matrix(HIDDEN, INNER),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": known - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, known, True),
    }
    if with_embedding:
        tensors["embed_tokens.weight"] = matrix(VOCAB, HIDDEN)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | overrides))
    save_file(tensors, folder / "model.safetensors")
    return tensors


@torch.inference_mode()
def reference_guesses(
    head: dict[str, Tensor], target: PreTrainedModel, tap_layers: tuple[int, ...], token_ids: list[int], count: int
) -> list[int]:
    """What the head guesses after `token_ids`, all but the last of which the target has computed."""
    states = target(torch.tensor([token_ids[:-1]]), output_hidden_states=True).hidden_states
    hidden = torch.cat([states[layer][0] for layer in tap_layers], dim=-1) @ head["fc.weight"].T
    embedding = head.get("embed_tokens.weight", target.get_parameter("model.embed_tokens.weight"))
    tokens = list(token_ids[1:])
    guesses: list[int] = []
    while True:
        output = _layer(head, embedding[torch.tensor(tokens)], hidden)[-1]
        draft_id = int((_rms_norm(output, head["norm.weight"]) @ head["lm_head.weight"].T).argmax())
        guesses.append(draft_id + int(head["d2t"][draft_id]))
        if len(guesses) == count:
            return guesses
        hidden, tokens = torch.cat((hidden, output[None])), [*tokens, guesses[-1]]


def _layer(head: dict[str, Tensor], embeddings: Tensor, hidden: Tensor) -> Tensor:
    def weight(name: str) -> Tensor:
        return head[f"midlayer.{name}.weight"]

    x = torch.cat((_rms_norm(embeddings, weight("input_layernorm")), _rms_norm(hidden, weight("hidden_norm"))), dim=-1)
    query, key, value = (
        (x @ weight(f"self_attn.{part}_proj").T).view(len(x), -1, HEAD_DIM).transpose(0, 1) for part in "qkv"
    )  # [heads, tokens, head_dim]
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, 0) for part in (_rotated(key), value))
    attended = functional.scaled_dot_product_attention(_rotated(query), key, value, is_causal=True)
    hidden = hidden + attended.transpose(0, 1).flatten(1) @ weight("self_attn.o_proj").T
    normalized = _rms_norm(hidden, weight("post_attention_layernorm"))
    inner = functional.silu(normalized @ weight("mlp.gate_proj").T) * (normalized @ weight("mlp.up_proj").T)
    return hidden + inner @ weight("mlp.down_proj").T


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _rotated(heads: Tensor) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(heads.shape[1]), frequencies)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)
