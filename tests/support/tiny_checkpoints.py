"""Small random models of the Llama family, made and saved by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
_QWEN_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
DEFAULTS: dict[str, dict[str, object]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**_QWEN_EXPERTS, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**_QWEN_EXPERTS, "head_dim": 16, "norm_topk_prob": True},
}


def make_checkpoint(
    folder: Path,
    *,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    save_original_format: bool = True,
    **overrides: object,
) -> PreTrainedModel:
    """Saves a model of some 100,000 weights in `folder` and returns it. Without `save_original_format`, experts are
    saved as transformers holds them in memory."""
    logging.disable_progress_bar()
    config_class, model_class = FAMILIES[family]
    settings: dict[str, object] = {
        "vocab_size": 211,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        # Large enough that the logits of different tokens differ by far more than rounding.
        "initializer_range": 0.2,
    }
    settings |= DEFAULTS.get(family, {})
    torch.manual_seed(7)
    model: PreTrainedModel = model_class(config_class(**(settings | overrides))).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases are initialised to constants, which would hide where they go.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size, save_original_format=save_original_format)
    return model
