"""What shape does a model of the Llama family have? One frozen value, whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass

from worker_svc.models.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Hyperparameters under Hugging Face's names, where they have one."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    # The longest context that the position embedding is made for.
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
