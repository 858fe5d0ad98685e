"""What shape does a model of the Llama family have? One frozen value, whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass

from worker_svc.models.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts: several small feed-forward networks, of which each token takes a few."""

    num_experts: int
    num_experts_per_token: int
    # Of each expert.
    intermediate_size: int
    # Whether the probabilities of the chosen experts are scaled to a sum of 1.
    normalize_weights: bool
    # Of the network that every token takes beside its experts; None: there is none.
    shared_intermediate_size: int | None
    # Indices of the layers with experts. The others have one network of LlamaConfig.intermediate_size.
    layers: frozenset[int]


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
    # Whether each head of queries and keys is normalized before it is rotated (Qwen3).
    qk_norm: bool
    attention_output_bias: bool
    mlp_bias: bool
    # None: no layer has any.
    experts: ExpertsConfig | None
