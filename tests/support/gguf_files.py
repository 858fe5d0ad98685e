"""GGUF files made of transformers models, the way llama.cpp's converter makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from transformers import PreTrainedConfig, PreTrainedModel

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    exceptions: Mapping[str, GGMLQuantizationType] | None = None,
    rope_divisors: list[float] | None = None,
    skip: tuple[str, ...] = (),
    **metadata: int | float | str,
) -> None:
    """Writes `model` to `path`. Matrices are quantized, the `exceptions` in another way, by the last part of their
    module's name; vectors stay float32, tensors in `skip` are left out. `metadata` adds to the keys that describe the
    model or replaces them, with __ for dots."""
    config = model.config
    keys: dict[str, int | float | str] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    keys |= _expert_keys(config)
    keys = {f"{architecture}.{key}": value for key, value in keys.items()}
    keys |= {key.replace("__", "."): value for key, value in metadata.items()}
    writer = gguf.GGUFWriter(path, str(keys.pop("general.architecture", architecture)))
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for name, array in _tensors(model).items():
        if name not in skip:
            kind = (exceptions or {}).get(name.split(".")[-2], quantization)
            kind = kind if array.ndim > 1 and "_inp" not in name else GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(rope_divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _expert_keys(config: PreTrainedConfig) -> dict[str, int | float | str]:
    if not hasattr(config, "num_experts_per_tok"):
        return {}
    keys: dict[str, int | float | str] = {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }
    if config.model_type != "mixtral":
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if config.model_type == "qwen2_moe":
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return keys


def _tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    config = model.config
    tensors: dict[str, np.ndarray] = {}
    interleaved = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        array = parameter.detach().float().numpy()
        outer, _, kind = name.rpartition(".")
        if outer.endswith(".experts"):
            tensors |= _expert_tensors(outer.split(".")[2], kind, array)
            continue
        heads = interleaved.get(outer.rpartition(".")[2]) if config.model_type in ("llama", "mixtral") else None
        if heads is not None:
            # LlamaModel.permute of convert_hf_to_gguf.py.
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if outer.startswith("model.layers."):
            _, _, layer, inner = outer.split(".", 3)
            array = array[0] if inner == "mlp.shared_expert_gate" else array
            tensors[f"blk.{layer}.{NAMES[inner]}.{kind}"] = np.ascontiguousarray(array)
        else:
            tensors[f"{NAMES[outer]}.{kind}"] = array
    return tensors


def _expert_tensors(layer: str, kind: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """[experts, rows, columns], gate above up where transformers has them in one."""
    if kind == "down_proj":
        return {f"blk.{layer}.ffn_down_exps.weight": array}
    gate, up = np.split(array, 2, axis=1)
    names = (f"blk.{layer}.ffn_gate_exps.weight", f"blk.{layer}.ffn_up_exps.weight")
    return {name: np.ascontiguousarray(half) for name, half in zip(names, (gate, up), strict=True)}
