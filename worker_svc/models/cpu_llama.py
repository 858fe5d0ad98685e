"""A Llama whose steps run in the library of CPU kernels, in bfloat16; to its callers the same as `Llama`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from pageloom_kernels import AttentionBatch, HiddenTaps
from pageloom_kernels.cpu.engine import HEAD_DIM_MULTIPLE, PAGE_TOKENS, StepEngine
from pageloom_kernels.cpu.library import NoCpuLibrary
from pageloom_kernels.cpu.thread_pool import ThreadPool
from pageloom_kernels.cpu.weights import (
    ExpertsWeights,
    LayerWeights,
    LinearWeights,
    MlpWeights,
    ModelWeights,
    PackedMatrix,
    SharedExpertWeights,
    WeightStore,
)
from worker_svc.models.config import LlamaConfig
from worker_svc.models.feed_forward import DenseMlp, MixtureMlp
from worker_svc.models.layers import Linear
from worker_svc.models.llama import EMBEDDING, Llama, LlamaLayer
from worker_svc.models.model import Destination
from worker_svc.models.quantized import BlockDestination, quantized_matrix

_CPU = torch.device("cpu")
# The hidden states before attention have a few values far above the rest: with one byte for each input, queries and
# keys from them are off by as much as everything else together. Errors of the head choose another token directly.
_PRECISE_CODES = 2


class CpuLlama:
    """A `model.Model` in the library. Matrices stay in ggml's blocks where all tensors that they are read from have
    a type in `ggml_types`, by their names, and there are kernels for it."""

    def __init__(
        self, config: LlamaConfig, *, num_positions: int, pool: ThreadPool, ggml_types: Mapping[str, int]
    ) -> None:
        self.config = config
        self.num_positions = num_positions
        # Its tensors are where the rest of the checkpoint is read to. It is given up for the engine.
        self._loading: Llama | None = Llama(config, num_positions=num_positions, dtype=torch.bfloat16, device=_CPU)
        self._store = WeightStore(pool)
        self._blocks: dict[str, BlockDestination] = {}
        # It may be the head too.
        self._embedding = self._quantized_matrix(
            ggml_types, [EMBEDDING], [config.vocab_size], config.hidden_size, _PRECISE_CODES
        )
        precise = {self._loading.head, *(layer.qkv for layer in self._loading.layers)}
        self._quantized = {
            linear: self._quantized_matrix(
                ggml_types,
                [f"{name}.weight" for name in names],
                sizes,
                linear.weight.shape[1],
                _PRECISE_CODES if linear in precise else 1,
            )
            for linear, names, sizes in (*self._loading.linears(), *self._loading.expert_linears())
        }
        self._engine: StepEngine | None = None

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
        return self._loaded().forward(token_ids, batch, kv_caches, output_rows, taps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        return self._loaded().logits(hidden)

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> token ids [rows]; -1 where the largest logit is not a finite number."""
        return self._loaded().most_likely(hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]."""
        return self._loaded().embed(token_ids)

    def first_layers(self, num_layers: int) -> Self:
        """A model of the first layers, the norm and the head, over the same weights."""
        model = copy(self)
        model.config = replace(self.config, num_layers=num_layers)
        model._engine = self._loaded().first_layers(num_layers)
        return model

    def destinations(self) -> dict[str, Destination]:
        """Where each tensor of the checkpoint goes, by its name in a Hugging Face checkpoint."""
        assert self._loading is not None
        return {**self._loading.destinations(), **self._blocks}

    def finish_loading(self) -> None:
        """Packs the matrices, one at a time, so that never two copies of all exist."""
        model, self._loading = self._loading, None
        assert model is not None
        embedding = self._embedding or self._store.pack(model.embedding)
        model.embedding = model.embedding.new_empty(0)
        weights = ModelWeights(
            num_heads=self.config.num_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            rms_norm_eps=self.config.rms_norm_eps,
            embedding=embedding,
            layers=tuple(self._pack_layer(layer) for layer in model.layers),
            norm=model.norm,
            head=embedding if model.head is None else self._pack(model.head).matrix,
            cos=model.cos,
            sin=model.sin,
        )
        self._engine = StepEngine(self._store, weights)

    def _quantized_matrix(
        self,
        ggml_types: Mapping[str, int],
        names: Sequence[str],
        sizes: Sequence[int],
        in_features: int,
        codes_per_input: int,
    ) -> PackedMatrix | None:
        found = quantized_matrix(self._store, ggml_types, names, sizes, in_features, codes_per_input=codes_per_input)
        if found is None:
            return None
        matrix, destinations = found
        self._blocks |= destinations
        return matrix

    def _pack_layer(self, layer: LlamaLayer) -> LayerWeights:
        return LayerWeights(
            attention_norm=layer.attention_norm,
            qkv=self._pack(layer.qkv),
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            output=self._pack(layer.output),
            mlp_norm=layer.mlp_norm,
            mlp=self._pack_mlp(layer.mlp) if isinstance(layer.mlp, DenseMlp) else self._pack_experts(layer.mlp),
        )

    def _pack_mlp(self, mlp: DenseMlp) -> MlpWeights:
        return MlpWeights(gate_up=self._pack(mlp.gate_up), down=self._pack(mlp.down))

    def _pack_experts(self, mlp: MixtureMlp) -> ExpertsWeights:
        shared = None
        if mlp.shared is not None:
            shared = SharedExpertWeights(
                gate_up=self._pack(mlp.shared.gate_up).matrix,
                down=self._pack(mlp.shared.down).matrix,
                gate=self._pack(mlp.shared_gate).matrix,
            )
        weights = ExpertsWeights(
            experts_per_token=mlp.config.num_experts_per_token,
            normalize_weights=mlp.config.normalize_weights,
            router=self._pack(mlp.router).matrix,
            gate_up=tuple(self._pack(gate_up).matrix for gate_up, _ in mlp.experts),
            down=tuple(self._pack(down).matrix for _, down in mlp.experts),
            shared=shared,
        )
        # What the experts were views of.
        mlp.gate_up, mlp.down = mlp.gate_up.new_empty(0), mlp.down.new_empty(0)
        return weights

    def _pack(self, linear: Linear) -> LinearWeights:
        matrix = self._quantized[linear] or self._store.pack(linear.weight)
        linear.weight = linear.weight.new_empty(0)
        return LinearWeights(matrix=matrix, bias=linear.bias)

    def _loaded(self) -> StepEngine:
        assert self._engine is not None, "finish_loading comes first"
        return self._engine


def check_shape(config: LlamaConfig, block_size: int) -> None:
    """Raises NoCpuLibrary if the library cannot run a model of this shape."""
    if block_size % PAGE_TOKENS:
        raise NoCpuLibrary(f"their KV blocks hold {PAGE_TOKENS} tokens or a multiple, and --block-size is {block_size}")
    if config.head_dim % HEAD_DIM_MULTIPLE:
        raise NoCpuLibrary(
            f"they take heads of {HEAD_DIM_MULTIPLE} dimensions or a multiple, and the model's have {config.head_dim}"
        )
    experts = config.experts
    expert_sizes = () if experts is None else (experts.intermediate_size, experts.shared_intermediate_size or 0)
    if any(size % 2 for size in (config.hidden_size, config.intermediate_size, *expert_sizes)):
        raise NoCpuLibrary("they take hidden states of an even size only")
