"""An EAGLE-3 head: one layer that guesses from what the model thought of the tokens so far, and from its own guesses.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025,
arXiv 2503.01840).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels import AttentionBatch, paged_attention, rms_norm, rotary_write_kv, silu_mul
from worker_svc.models.config import LlamaConfig
from worker_svc.models.layers import Linear
from worker_svc.models.rope import rotary_tables

NUM_TAPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """`layer` is the shape of the head's only layer."""

    layer: LlamaConfig
    target_hidden_size: int
    # The head chooses among these tokens, the most frequent ones of the model's vocabulary.
    draft_vocab_size: int
    # The model's layers whose inputs the head reads.
    tap_layers: tuple[int, int, int]
    # Whether the residual starts from the normalized hidden state.
    norm_before_residual: bool


class Eagle3Head:
    """Position p takes the model's hidden states there, or the head's own where the model has not been, together with
    the embedding of token p + 1, and guesses token p + 2. Its keys and values for that are those of position p."""

    def __init__(self, config: Eagle3Config, *, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.num_positions = num_positions
        self.fusion_size = NUM_TAPS * config.target_hidden_size
        layer = config.layer
        hidden, inner = layer.hidden_size, layer.intermediate_size
        query_size, kv_size = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        self._qkv_sizes = [query_size, kv_size, kv_size]

        def linear(in_features: int, out_features: int, bias: bool = False) -> Linear:
            return Linear(in_features, out_features, bias=bias, dtype=dtype, device=device)

        def norm() -> Tensor:
            return torch.empty(hidden, dtype=dtype, device=device)

        self.fusion = linear(self.fusion_size, hidden)
        self.embedding_norm, self.hidden_norm, self.mlp_norm, self.norm = norm(), norm(), norm(), norm()
        self.qkv = linear(2 * hidden, query_size + 2 * kv_size, layer.qkv_bias)
        self.output = linear(query_size, hidden, layer.attention_output_bias)
        self.gate_up = linear(hidden, 2 * inner, layer.mlp_bias)
        self.down = linear(inner, hidden, layer.mlp_bias)
        self.head = linear(hidden, config.draft_vocab_size)
        # None: it looks tokens up in the model's own.
        self.embedding: Tensor | None = None
        # The model's id of each token that the head knows.
        self.token_ids = torch.arange(config.draft_vocab_size, device=device)
        cos, sin = rotary_tables(layer.rope, layer.head_dim, num_positions)
        self._cos, self._sin = cos.to(device), sin.to(device)

    def fuse(self, tapped: Tensor) -> Tensor:
        """The model's hidden states [tokens, fusion_size] -> [tokens, hidden]."""
        return self.fusion(tapped)

    def forward(self, embeddings: Tensor, hidden: Tensor, batch: AttentionBatch, kv_cache: Tensor) -> Tensor:
        """[tokens, hidden] each -> hidden states [tokens, hidden]; writes K and V."""
        eps = self.config.layer.rms_norm_eps
        normalized = rms_norm(hidden, self.hidden_norm, eps=eps)[0]
        residual = normalized if self.config.norm_before_residual else hidden
        embeddings = rms_norm(embeddings, self.embedding_norm, eps=eps)[0]
        attended = self._attend(torch.cat((embeddings, normalized), dim=-1), batch, kv_cache)
        normalized, residual = rms_norm(attended, self.mlp_norm, eps=eps, residual=residual)
        return self.down(silu_mul(self.gate_up(normalized))) + residual

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> the model's token ids [rows]; -1 where the largest logit is not a finite number."""
        logits = self.head(rms_norm(hidden, self.norm, eps=self.config.layer.rms_norm_eps)[0])
        largest, draft_ids = logits.max(dim=-1)
        return torch.where(largest.isfinite(), self.token_ids[draft_ids], -1)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden], if it has an embedding of its own."""
        assert self.embedding is not None
        return functional.embedding(token_ids, self.embedding)

    def finish_loading(self) -> None:
        """Puts the loaded weights into the layout that the device multiplies fastest."""
        for linear in (self.fusion, self.qkv, self.output, self.gate_up, self.down, self.head):
            linear.pack()

    def _attend(self, x: Tensor, batch: AttentionBatch, kv_cache: Tensor) -> Tensor:
        head_dim = self.config.layer.head_dim
        query, key, value = (
            part.view(len(x), -1, head_dim) for part in torch.split(self.qkv(x), self._qkv_sizes, dim=-1)
        )  # [tokens, heads, head_dim]
        query = rotary_write_kv(query, key, value, self._cos, self._sin, kv_cache, batch)
        return self.output(paged_attention(query, kv_cache, batch, scale=head_dim**-0.5).flatten(1))
