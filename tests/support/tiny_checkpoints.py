"""Small random models of the Llama family, made and saved by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def make_checkpoint(
    folder: Path,
    *,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: object,
) -> PreTrainedModel:
    """Saves a model of some 100,000 weights in `folder` and returns it."""
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
    if family == "mistral":
        settings["sliding_window"] = None
    torch.manual_seed(7)
    model: PreTrainedModel = model_class(config_class(**(settings | overrides))).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases are initialised to constants, which would hide where they go.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model
