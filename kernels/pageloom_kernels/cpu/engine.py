"""A whole step of a Llama in the library: one call for all layers."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pageloom_kernels.cpu import structs
from pageloom_kernels.cpu.weights import (
    ExpertsWeights,
    LayerWeights,
    LinearWeights,
    MlpWeights,
    ModelWeights,
    WeightStore,
    allocated,
)
from pageloom_kernels.hidden_taps import HiddenTaps
from pageloom_kernels.paged_attention.batch import AttentionBatch

# kPageTokens of src/kernels.h, and what AttentionShape there asks of a head.
PAGE_TOKENS = 32
HEAD_DIM_MULTIPLE = 16


class StepEngine:
    """Runs steps of a model. One thread at a time may call it. Methods raise MemoryError."""

    def __init__(self, store: WeightStore, weights: ModelWeights) -> None:
        self._store = store
        self._pool = store.pool
        self._functions = store.pool.library.functions
        # The library keeps pointers into both.
        self._weights, self._spec = weights, _model_spec(weights)
        self._handle = allocated(self._functions.pageloom_model_create(self._pool.handle, ctypes.byref(self._spec)))
        weakref.finalize(self, self._functions.pageloom_model_free, self._handle).atexit = False

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[Tensor],
        output_rows: Tensor,
        taps: HiddenTaps | None = None,
    ) -> Tensor:
        """[tokens] int64 -> normalized hidden states of `output_rows`, [outputs, hidden]; writes each layer's K and V
        into its bfloat16 [blocks, 2, kv_heads, block_size, head_dim], in the order of src/kernels.h."""
        block_size = kv_caches[0].shape[3]
        hidden = torch.empty(len(output_rows), self._weights.embedding.in_features, dtype=torch.bfloat16)
        done = self._functions.pageloom_forward(
            self._pool.handle,
            self._handle,
            ctypes.byref(_step_inputs(token_ids, batch, block_size, output_rows, taps)),
            (ctypes.c_void_p * len(kv_caches))(*[cache.data_ptr() for cache in kv_caches]),
            hidden.data_ptr(),
        )
        _check(done)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, vocab]."""
        logits = torch.empty(len(hidden), self._weights.head.out_features, dtype=torch.float32)
        _check(self._functions.pageloom_logits(self._pool.handle, self._handle, *_rows(hidden), logits.data_ptr()))
        return logits

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> int64 [rows], the first of the largest logits; -1 where that is not a finite number."""
        token_ids = torch.empty(len(hidden), dtype=torch.int64)
        done = self._functions.pageloom_most_likely(
            self._pool.handle, self._handle, *_rows(hidden), token_ids.data_ptr()
        )
        _check(done)
        return token_ids

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] int64 -> bfloat16 [tokens, hidden]."""
        rows = torch.empty(len(token_ids), self._weights.embedding.in_features, dtype=torch.bfloat16)
        self._functions.pageloom_embed(
            self._pool.handle, self._handle, token_ids.data_ptr(), len(token_ids), rows.data_ptr()
        )
        return rows

    def first_layers(self, num_layers: int) -> StepEngine:
        """A model of the first layers, the norm and the head, over the same weights."""
        return StepEngine(self._store, replace(self._weights, layers=self._weights.layers[:num_layers]))


def attention_batch(batch: AttentionBatch, block_size: int) -> structs.AttentionBatch:
    """The same batch for the library; its tensors are pointed to."""
    return structs.AttentionBatch(
        num_seqs=len(batch.seq_lens),
        query_start=batch.query_start.data_ptr(),
        seq_lens=batch.seq_lens.data_ptr(),
        block_tables=batch.block_tables.data_ptr(),
        table_stride=batch.block_tables.stride(0),
        block_size=block_size,
    )


def experts_struct(experts: ExpertsWeights) -> structs.Experts:
    """The same mixture for the library; its matrices are pointed to."""
    shared = experts.shared
    return structs.Experts(
        num_experts=len(experts.down),
        experts_per_token=experts.experts_per_token,
        normalize_weights=experts.normalize_weights,
        router=experts.router.handle,
        gate_up=(ctypes.c_void_p * len(experts.gate_up))(*[matrix.handle for matrix in experts.gate_up]),
        down=(ctypes.c_void_p * len(experts.down))(*[matrix.handle for matrix in experts.down]),
        shared_gate_up=None if shared is None else shared.gate_up.handle,
        shared_down=None if shared is None else shared.down.handle,
        shared_gate=None if shared is None else shared.gate.handle,
    )


def _step_inputs(
    token_ids: Tensor, batch: AttentionBatch, block_size: int, output_rows: Tensor, taps: HiddenTaps | None
) -> structs.StepInputs:
    layers = () if taps is None else taps.layers
    return structs.StepInputs(
        num_rows=len(token_ids),
        token_ids=token_ids.data_ptr(),
        positions=batch.positions.data_ptr(),
        slot_mapping=batch.slot_mapping.data_ptr(),
        num_outputs=len(output_rows),
        output_rows=output_rows.data_ptr(),
        attention=attention_batch(batch, block_size),
        num_taps=len(layers),
        tap_layers=(ctypes.c_int32 * len(layers))(*layers),
        taps=None if taps is None else taps.states.data_ptr(),
    )


def _model_spec(weights: ModelWeights) -> structs.ModelSpec:
    layers = [_layer(layer) for layer in weights.layers]
    return structs.ModelSpec(
        num_layers=len(layers),
        num_heads=weights.num_heads,
        num_kv_heads=weights.num_kv_heads,
        head_dim=weights.head_dim,
        hidden_size=weights.embedding.in_features,
        intermediate_size=max(_intermediate_size(layer.mlp) for layer in weights.layers),
        rms_norm_eps=weights.rms_norm_eps,
        layers=(structs.Layer * len(layers))(*layers),
        embedding=weights.embedding.handle,
        head=weights.head.handle,
        norm=weights.norm.data_ptr(),
        cos=weights.cos.data_ptr(),
        sin=weights.sin.data_ptr(),
    )


def _layer(layer: LayerWeights) -> structs.Layer:
    spec = structs.Layer(
        attention_norm=layer.attention_norm.data_ptr(),
        qkv=_linear(layer.qkv),
        query_norm=_optional_pointer(layer.query_norm),
        key_norm=_optional_pointer(layer.key_norm),
        output=_linear(layer.output),
        mlp_norm=layer.mlp_norm.data_ptr(),
    )
    if isinstance(layer.mlp, ExpertsWeights):
        spec.experts = ctypes.pointer(experts_struct(layer.mlp))
    else:
        spec.gate_up, spec.down = _linear(layer.mlp.gate_up), _linear(layer.mlp.down)
    return spec


def _intermediate_size(mlp: MlpWeights | ExpertsWeights) -> int:
    return 0 if isinstance(mlp, ExpertsWeights) else mlp.down.matrix.in_features


def _linear(weights: LinearWeights) -> structs.Linear:
    return structs.Linear(matrix=weights.matrix.handle, bias=_optional_pointer(weights.bias))


def _optional_pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows(hidden: Tensor) -> tuple[int, int]:
    return hidden.data_ptr(), len(hidden)


def _check(done: bool) -> None:
    if not done:
        raise MemoryError("there is no memory for the activations of this step")
