"""What model is in a Hugging Face folder? Its config.json as a LlamaConfig, and its end-of-sequence tokens.

Own code, because importing transformers costs a worker 2 s and 200 MB. Missing keys have the defaults
of transformers' configuration classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from pageloom.errors import ModelLoadError
from worker_svc.hf_experts import experts_config
from worker_svc.json_object import JsonObject
from worker_svc.models.config import LlamaConfig
from worker_svc.models.rope import (
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)

log = structlog.get_logger()

_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """An architecture, and the defaults of its keys. None: as many as heads, and what they leave of hidden_size."""

    model_class: str
    context: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False  # whether there is such a key
    qk_norm: bool = False


_FAMILIES = {
    "llama": _Family(model_class="LlamaForCausalLM", context=2048, attention_bias=True),
    "mistral": _Family(model_class="MistralForCausalLM", context=131072, num_kv_heads=8),
    "qwen2": _Family(model_class="Qwen2ForCausalLM", context=32768),
    "qwen3": _Family(model_class="Qwen3ForCausalLM", context=32768, head_dim=128, attention_bias=True, qk_norm=True),
    "mixtral": _Family(
        model_class="MixtralForCausalLM", context=131072, num_kv_heads=8, rms_norm_eps=1e-5, rope_theta=1e6
    ),
    "qwen2_moe": _Family(model_class="Qwen2MoeForCausalLM", context=32768, num_kv_heads=16),
    "qwen3_moe": _Family(
        model_class="Qwen3MoeForCausalLM", context=32768, num_kv_heads=4, attention_bias=True, qk_norm=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """What the JSON files of a model folder say."""

    architecture: str
    config: LlamaConfig
    eos_token_ids: tuple[int, ...]
    sliding_window: int | None


def read_hf_config(folder: Path) -> HfModel:
    """Reads config.json and generation_config.json.

    Raises ModelLoadError, naming the file and the key, for what is missing, malformed or not supported.
    """
    values = JsonObject.read(folder / "config.json")
    architecture = _supported_architecture(values)
    _refuse_unsupported(values)
    return HfModel(
        architecture=architecture,
        config=llama_config(values, architecture),
        eos_token_ids=_eos_token_ids(values, folder / "generation_config.json"),
        sliding_window=_sliding_window(values, architecture),
    )


def _supported_architecture(values: JsonObject) -> str:
    model_type = values.get("model_type", str, "")
    family = _FAMILIES.get(model_type)
    named = values.values.get("architectures") or ([family.model_class] if family is not None else [])
    if family is None or not isinstance(named, list) or family.model_class not in named:
        found = named if family is not None else model_type or "not named"
        supported = ", ".join(family.model_class for family in _FAMILIES.values())
        raise ModelLoadError(f"{values.path}: architecture {found} is not supported; supported are {supported}")
    return model_type


def _refuse_unsupported(values: JsonObject) -> None:
    if values.values.get("auto_map"):
        log.warning("config.json names code of its own (auto_map); it is not run", path=str(values.path))
    if values.values.get("quantization_config") is not None:
        raise ModelLoadError(
            f"{values.path}: quantization_config is not supported; give unquantized safetensors or a GGUF file"
        )
    activation = values.get("hidden_act", str, "silu")
    if activation != "silu":
        raise ModelLoadError(f"{values.path}: hidden_act {activation!r} is not supported; supported is 'silu'")


def llama_config(values: JsonObject, architecture: str) -> LlamaConfig:
    """The shape that the keys of a config.json describe. Raises ModelLoadError."""
    family = _FAMILIES[architecture]
    num_heads = values.count("num_attention_heads")
    hidden_size = values.count("hidden_size")
    num_kv_heads = values.count("num_key_value_heads", family.num_kv_heads or num_heads)
    max_positions = values.count("max_position_embeddings", family.context)
    head_dim = values.count("head_dim", family.head_dim or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise ModelLoadError(
            f"{values.path}: {num_heads} heads of {head_dim} dimensions and {num_kv_heads} key-value heads do not fit: "
            "heads must be a multiple of key-value heads, and dimensions even"
        )
    attention_bias = family.attention_bias and values.get("attention_bias", bool, False)
    num_layers = values.count("num_hidden_layers")
    return LlamaConfig(
        vocab_size=values.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=values.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=values.positive("rms_norm_eps", family.rms_norm_eps),
        rope=_rope(values, family, max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings=values.get("tie_word_embeddings", bool, False),
        qkv_bias=attention_bias or _has_qkv_bias(values, architecture),
        qk_norm=family.qk_norm,
        attention_output_bias=attention_bias,
        mlp_bias=architecture == "llama" and values.get("mlp_bias", bool, False),
        experts=experts_config(values, architecture, num_layers),
    )


def _has_qkv_bias(values: JsonObject, architecture: str) -> bool:
    return architecture == "qwen2" or (architecture == "qwen2_moe" and values.get("qkv_bias", bool, True))


def _rope(values: JsonObject, family: _Family, max_positions: int) -> RopeConfig:
    # Since transformers 5 all of it is in rope_parameters; before, rope_scaling stood beside rope_theta.
    rope = values.child("rope_parameters")
    if not rope.values:
        rope = values.child("rope_scaling")
    theta = rope.positive("rope_theta", values.positive("rope_theta", family.rope_theta))
    partial = rope.get("partial_rotary_factor", float, values.get("partial_rotary_factor", float, 1.0))
    if partial != 1.0:
        raise ModelLoadError(f"{values.path}: partial_rotary_factor {partial} is not supported; supported is 1")
    rope_type = rope.get("rope_type", str, rope.get("type", str, "default"))
    if rope_type not in _ROPE_TYPES:
        raise ModelLoadError(
            f"{values.path}: RoPE type {rope_type!r} is not supported; supported are {', '.join(_ROPE_TYPES)}"
        )
    return RopeConfig(theta=theta, scaling=_rope_scaling(rope, rope_type, max_positions))


def _rope_scaling(rope: JsonObject, rope_type: str, max_positions: int) -> RopeScaling | None:
    if rope_type == "linear":
        return LinearScaling(factor=rope.positive("factor"))
    if rope_type == "llama3":
        return Llama3Scaling(
            factor=rope.positive("factor"),
            low_freq_factor=rope.positive("low_freq_factor"),
            high_freq_factor=rope.positive("high_freq_factor"),
            original_max_position_embeddings=rope.count("original_max_position_embeddings", max_positions),
        )
    if rope_type == "yarn":
        return _yarn_scaling(rope, max_positions)
    # "dynamic" scales only what is longer than max_position_embeddings, and no context here is.
    return None


def _yarn_scaling(rope: JsonObject, max_positions: int) -> YarnScaling:
    original = rope.count("original_max_position_embeddings", max_positions)
    factor = rope.positive("factor", max_positions / original)
    recommended = yarn_attention_factor(factor)
    mscale, mscale_all_dim = rope.get("mscale", float, 0.0), rope.get("mscale_all_dim", float, 0.0)
    if mscale and mscale_all_dim:
        recommended = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, mscale_all_dim)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=rope.positive("attention_factor", recommended),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        truncate=rope.get("truncate", bool, True),
    )


def _sliding_window(values: JsonObject, architecture: str) -> int | None:
    if architecture in ("mistral", "mixtral"):
        # Null means none, and a key that is missing the 4,096 of the first Mistral, or none for Mixtral.
        default = 4096 if architecture == "mistral" else None
        window = values.values.get("sliding_window", default)
        return None if window is None else values.count("sliding_window", default)
    # In some layers only; a context within the window is attended to in full by all.
    if architecture.startswith("qwen") and values.get("use_sliding_window", bool, False):
        return values.count("sliding_window", 4096)
    return None


def _eos_token_ids(values: JsonObject, generation_config: Path) -> tuple[int, ...]:
    """All ids that either file names, each once."""
    sources = [values]
    if generation_config.is_file():
        sources.append(JsonObject.read(generation_config))
    found: dict[int, None] = {}
    for source in sources:
        named = source.values.get("eos_token_id")
        for token_id in named if isinstance(named, list) else [named]:
            if isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0:
                found[token_id] = None
            elif token_id is not None:
                raise ModelLoadError(f"{source.path}: eos_token_id {token_id!r} is not a token id")
    return tuple(found)
