"""A Llama whose steps run in the library of CPU kernels, in bfloat16; to its callers the same as `Llama`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pageloom_kernels import AttentionBatch
from pageloom_kernels.cpu.engine import LayerWeights, LinearWeights, ModelWeights, StepEngine, WeightStore
from pageloom_kernels.cpu.thread_pool import ThreadPool
from worker_svc.models.config import LlamaConfig
from worker_svc.models.layers import Linear
from worker_svc.models.llama import Llama, LlamaLayer

_CPU = torch.device("cpu")


class CpuLlama:
    """Weights are uninitialised until `destinations` are filled; there is nothing to run before `finish_loading`."""

    def __init__(self, config: LlamaConfig, *, num_positions: int, pool: ThreadPool) -> None:
        self.config = config
        # Its tensors are where the checkpoint is read to. It is given up for the engine.
        self._loading: Llama | None = Llama(config, num_positions=num_positions, dtype=torch.bfloat16, device=_CPU)
        self._engine: StepEngine | None = None
        self._pool = pool
        self.num_positions = num_positions

    def forward(
        self, token_ids: Tensor, batch: AttentionBatch, kv_caches: Sequence[Tensor], output_rows: Tensor
    ) -> Tensor:
        """[tokens] -> normalised hidden states of `output_rows` [outputs, hidden]; writes each layer's K and V."""
        return self._loaded().forward(token_ids, batch, kv_caches, output_rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        return self._loaded().logits(hidden)

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> token ids [rows]; -1 where the largest logit is not a finite number."""
        return self._loaded().most_likely(hidden)

    def destinations(self) -> dict[str, Tensor]:
        """Where each tensor of the checkpoint goes, by its name in a Hugging Face checkpoint."""
        assert self._loading is not None
        return self._loading.destinations()

    def finish_loading(self) -> None:
        """Packs the matrices, one at a time, so that never two copies of all exist."""
        model, self._loading = self._loading, None
        assert model is not None
        store = WeightStore(self._pool)
        embedding = store.pack(model.embedding)
        model.embedding = model.embedding.new_empty(0)
        weights = ModelWeights(
            num_heads=self.config.num_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            rms_norm_eps=self.config.rms_norm_eps,
            embedding=embedding,
            layers=tuple(_pack_layer(store, layer) for layer in model.layers),
            norm=model.norm,
            head=embedding if model.head is None else _pack(store, model.head).matrix,
            cos=model.cos,
            sin=model.sin,
        )
        self._engine = StepEngine(store, weights)

    def _loaded(self) -> StepEngine:
        assert self._engine is not None, "finish_loading comes first"
        return self._engine


def can_run(config: LlamaConfig, block_size: int) -> str | None:
    """Why the library cannot run a model of this shape; None if it can."""
    if block_size % 32:
        return f"its KV pages hold 32 tokens, and --block-size is {block_size}"
    if config.head_dim % 16:
        return f"it takes head sizes that are multiples of 16, and the model's is {config.head_dim}"
    if config.hidden_size % 2 or config.intermediate_size % 2:
        return "it takes rows of an even size"
    return None


def _pack_layer(store: WeightStore, layer: LlamaLayer) -> LayerWeights:
    return LayerWeights(
        attention_norm=layer.attention_norm,
        qkv=_pack(store, layer.qkv),
        output=_pack(store, layer.output),
        mlp_norm=layer.mlp_norm,
        gate_up=_pack(store, layer.gate_up),
        down=_pack(store, layer.down),
    )


def _pack(store: WeightStore, linear: Linear) -> LinearWeights:
    matrix = store.pack(linear.weight)
    linear.weight = linear.weight.new_empty(0)
    return LinearWeights(matrix=matrix, bias=linear.bias)
