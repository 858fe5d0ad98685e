"""A Llama, top to bottom. Mistral, Mixtral and the Qwens differ from it in their configuration only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from pageloom_kernels import AttentionBatch, HiddenTaps, paged_attention, rms_norm, rotary_write_kv
from worker_svc.models.config import LlamaConfig
from worker_svc.models.feed_forward import NamedLinear, make_mlp
from worker_svc.models.layers import Linear
from worker_svc.models.rope import rotary_tables
from worker_svc.parallel.ranks import ALONE, Ranks

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Llama:
    """A `model.Model` over PyTorch and Triton, or the part of one that this rank of `ranks` holds: `config` is the
    part's. Only the last stage has hidden states to return, and only its tensor rank 0 whole logits."""

    def __init__(
        self,
        config: LlamaConfig,
        *,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.num_positions = num_positions
        self._ranks = ranks
        self._dtype, self._device = dtype, device
        is_last, is_tied = ranks.layout.is_last, config.tie_word_embeddings
        # Without it the stage neither embeds nor is its head the embedding.
        num_embedded = config.vocab_size if ranks.layout.is_first or (is_tied and is_last) else 0
        self.embedding = torch.empty(num_embedded, config.hidden_size, dtype=dtype, device=device)
        self.layers = [
            LlamaLayer(config, index, ranks, dtype=dtype, device=device) for index in range(config.num_layers)
        ]
        self.norm = torch.empty(config.hidden_size if is_last else 0, dtype=dtype, device=device)
        # None: the head is the embedding, which stays as it is because rows are looked up in it.
        self.head = None
        if is_last and not is_tied:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype, device=device)
        cos, sin = rotary_tables(config.rope, config.head_dim, num_positions)
        self.cos, self.sin = cos.to(device), sin.to(device)

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[Tensor],
        output_rows: Tensor,
        taps: HiddenTaps | None = None,
    ) -> Tensor:
        """[tokens] -> normalised hidden states of `output_rows` [outputs, hidden]; writes each layer's K and V, and
        fills `taps`."""
        layout = self._ranks.layout
        if layout.is_first:
            hidden = self.embed(token_ids)
        else:
            shape = len(token_ids), self.config.hidden_size
            hidden = self._ranks.receive(torch.empty(shape, dtype=self._dtype, device=self._device))
        residual: Tensor | None = None
        for index, (layer, kv_cache) in enumerate(zip(self.layers, kv_caches, strict=True)):
            if taps is not None:
                _tap(taps, index, hidden, residual)
            hidden, residual = layer.forward(hidden, residual, self.cos, self.sin, kv_cache, batch)
        assert residual is not None
        if not layout.is_last:
            # The sum is what the next layer's norm would make of the two.
            self._ranks.send(hidden + residual)
            return hidden[:0]
        hidden, residual = hidden[output_rows], residual[output_rows]
        return rms_norm(hidden, self.norm, eps=self.config.rms_norm_eps, residual=residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""
        return self._ranks.join_logits(self._own_logits(hidden))

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> token ids [rows] int64; -1 where the largest logit is not a finite number."""
        largest, token_ids = self._ranks.largest(*self._own_logits(hidden).max(dim=-1))
        return torch.where(largest.isfinite(), token_ids, -1)

    def _own_logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.embedding) if self.head is None else self.head(hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]."""
        return self._ranks.embed(token_ids, self.embedding)

    def first_layers(self, num_layers: int) -> Self:
        """A model of the first layers, the norm and the head, over the same weights."""
        model = copy(self)
        model.config, model.layers = replace(self.config, num_layers=num_layers), self.layers[:num_layers]
        return model

    def destinations(self) -> dict[str, Tensor]:
        """Where each tensor of the checkpoint goes, by its name in a Hugging Face checkpoint."""
        outer = {EMBEDDING: self.embedding, NORM: self.norm}
        destinations = {name: tensor for name, tensor in outer.items() if len(tensor)}
        if self.head is not None:
            destinations |= _parts(self.head, ["lm_head"], [self.config.vocab_size])
        for index, layer in enumerate(self.layers):
            destinations |= layer.destinations(f"model.layers.{index}.")
        return destinations

    def linears(self) -> Iterator[NamedLinear]:
        """All that a step multiplies by as they are."""
        if self.head is not None:
            yield self.head, ["lm_head"], [self.config.vocab_size]
        for index, layer in enumerate(self.layers):
            yield from layer.linears(f"model.layers.{index}.")

    def expert_linears(self) -> Iterator[NamedLinear]:
        """Those of the experts, which a step multiplies by together."""
        for index, layer in enumerate(self.layers):
            yield from layer.expert_linears(f"model.layers.{index}.")

    def finish_loading(self) -> None:
        """Puts the loaded weights into the layout that the device multiplies fastest."""
        for linear, _, _ in self.linears():
            linear.pack()


class LlamaLayer:
    """Attention and feed-forward network, each behind its norm."""

    def __init__(
        self, config: LlamaConfig, index: int, ranks: Ranks, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self._ranks = ranks
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden = config.hidden_size

        def linear(in_features: int, out_features: int, bias: bool) -> Linear:
            return Linear(in_features, out_features, bias=bias, dtype=dtype, device=device)

        self.attention_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.qkv = linear(hidden, query_size + 2 * kv_size, config.qkv_bias)
        self.output = linear(query_size, hidden, config.attention_output_bias)
        self.mlp_norm = torch.empty(hidden, dtype=dtype, device=device)
        self.mlp = make_mlp(config, index, dtype=dtype, device=device)
        self.query_norm = self.key_norm = None
        if config.qk_norm:
            self.query_norm = torch.empty(config.head_dim, dtype=dtype, device=device)
            self.key_norm = torch.empty_like(self.query_norm)
        self._qkv_sizes = [query_size, kv_size, kv_size]

    def forward(
        self, hidden: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor]:
        """Takes and returns (what the layer adds to the residual, the residual), each [tokens, hidden]."""
        eps = self.config.rms_norm_eps
        hidden, residual = rms_norm(hidden, self.attention_norm, eps=eps, residual=residual)
        hidden = self._attend(hidden, cos, sin, kv_cache, batch)
        hidden, residual = rms_norm(hidden, self.mlp_norm, eps=eps, residual=residual)
        return self._ranks.sum(self.mlp(hidden)), residual

    def _attend(self, hidden: Tensor, cos: Tensor, sin: Tensor, kv_cache: Tensor, batch: AttentionBatch) -> Tensor:
        head_dim = self.config.head_dim
        query, key, value = (
            part.view(len(hidden), -1, head_dim) for part in torch.split(self.qkv(hidden), self._qkv_sizes, dim=-1)
        )  # [tokens, heads, head_dim]
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self._normalize(query, self.query_norm), self._normalize(key, self.key_norm)
        query = rotary_write_kv(query, key, value, cos, sin, kv_cache, batch)
        attended = paged_attention(query, kv_cache, batch, scale=head_dim**-0.5)
        return self._ranks.sum(self.output(attended.flatten(1)))

    def _normalize(self, heads: Tensor, weight: Tensor) -> Tensor:
        """Each head by itself: [tokens, heads, head_dim]."""
        rows = heads.reshape(-1, heads.shape[-1])
        return rms_norm(rows, weight, eps=self.config.rms_norm_eps)[0].view(heads.shape)

    def destinations(self, prefix: str) -> dict[str, Tensor]:
        """As Llama.destinations, for one layer."""
        destinations = {
            f"{prefix}input_layernorm.weight": self.attention_norm,
            f"{prefix}post_attention_layernorm.weight": self.mlp_norm,
        }
        if self.query_norm is not None and self.key_norm is not None:
            destinations[f"{prefix}self_attn.q_norm.weight"] = self.query_norm
            destinations[f"{prefix}self_attn.k_norm.weight"] = self.key_norm
        for linear, names, sizes in (*self.linears(prefix), *self.expert_linears(prefix)):
            destinations |= _parts(linear, names, sizes)
        return destinations

    def linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.linears, for one layer."""
        attention = f"{prefix}self_attn."
        return [
            (self.qkv, [f"{attention}q_proj", f"{attention}k_proj", f"{attention}v_proj"], self._qkv_sizes),
            (self.output, [f"{attention}o_proj"], [self.config.hidden_size]),
            *self.mlp.linears(f"{prefix}mlp."),
        ]

    def expert_linears(self, prefix: str) -> list[NamedLinear]:
        """As Llama.expert_linears, for one layer."""
        return self.mlp.expert_linears(f"{prefix}mlp.")


def _tap(taps: HiddenTaps, layer: int, hidden: Tensor, residual: Tensor | None) -> None:
    """Keeps what goes into `layer`, if it is asked for."""
    for tap, tapped in enumerate(taps.layers):
        if tapped == layer:
            taps.states[:, tap] = hidden if residual is None else hidden + residual


def _parts(linear: Linear, names: Sequence[str], sizes: list[int]) -> dict[str, Tensor]:
    parts = dict(zip((f"{name}.weight" for name in names), torch.split(linear.weight, sizes), strict=True))
    if linear.bias is not None:
        parts |= zip((f"{name}.bias" for name in names), torch.split(linear.bias, sizes), strict=True)
    return parts
