"""The tensors of a checkpoint as one rank sees them: its layers, and of each tensor its part."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from worker_svc.checkpoint import Checkpoint, Part, Weights
from worker_svc.models.config import LlamaConfig
from worker_svc.models.llama import EMBEDDING, HEAD, NORM
from worker_svc.parallel.layout import Layout

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
# Each rank computes some of the outputs of these, from all inputs ...
_BY_OUTPUTS = re.compile(r"model\.layers\..*\.(q|k|v|gate|up)_proj\.(?:weight|bias)")
# ... and from these as inputs a part of every output, which is summed over the ranks: a bias may be added once only.
_BY_INPUTS = re.compile(r"model\.layers\..*\.(?:o|down)_proj\.(weight|bias)")


def shard_checkpoint(checkpoint: Checkpoint, layout: Layout) -> Checkpoint:
    """What `layout`'s rank holds of a checkpoint, as a checkpoint of a smaller model. Its weights are converted."""
    if layout.num_ranks == 1:
        return checkpoint
    return replace(
        checkpoint,
        config=layout.local_config(checkpoint.config),
        weights=ShardedWeights(checkpoint.weights, checkpoint.config, layout),
        quantized=None,
    )


class ShardedWeights:
    """Implements checkpoint.Weights. Layers are numbered from the stage's first one."""

    def __init__(self, weights: Weights, config: LlamaConfig, layout: Layout) -> None:
        self.path: Path = weights.path
        self._weights = weights
        self._config = config
        self._layout = layout
        self._layers = layout.layers(config.num_layers)
        found = ((self._local_name(name), name) for name in weights.names)
        self._whole_names = {local_name: name for local_name, name in found if local_name is not None}

    @property
    def names(self) -> Collection[str]:
        return self._whole_names.keys()

    @property
    def dtype(self) -> torch.dtype | None:
        return self._weights.dtype

    def num_bytes(self, name: str) -> int:
        whole_name = self._whole_names[name]
        num_elements, num_whole = (torch.Size(shape).numel() for shape in (self.shape(name), self._shape(name)))
        return self._weights.num_bytes(whole_name) * num_elements // max(num_whole, 1)

    def shape(self, name: str) -> tuple[int, ...]:
        shape, part = self._shape(name), self._part(name)
        if part is None:
            return shape
        return (*shape[: part.dim], part.stop - part.start, *shape[part.dim + 1 :])

    def describe(self, name: str) -> str:
        described = self._weights.describe(self._whole_names[name])
        part = self._part(name)
        return described if part is None else f"{described}, {part.start} to {part.stop - 1} of dimension {part.dim},"

    def read(self, name: str, out: Tensor, part: Part | None = None) -> None:
        assert part is None, "a part of a part is never asked for"
        if self._is_added_elsewhere(name):
            out.zero_()
        else:
            self._weights.read(self._whole_names[name], out, self._part(name))

    def _local_name(self, name: str) -> str | None:
        """None: it is not of this stage."""
        layout = self._layout
        layer = _LAYER.fullmatch(name)
        if layer is not None:
            index = int(layer[1])
            # One that the model should not have is left to the loader to refuse.
            is_known = index < self._config.num_layers
            return (
                f"model.layers.{index - self._layers.start}.{layer[2]}"
                if index in self._layers or not is_known
                else None
            )
        if name == EMBEDDING:
            is_here = layout.is_first or (layout.is_last and self._config.tie_word_embeddings)
        else:
            is_here = layout.is_last or name not in (NORM, HEAD)
        return name if is_here else None

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(self._whole_names[name])

    def _part(self, name: str) -> Part | None:
        """None: all of it."""
        layout, shape = self._layout, self._shape(name)
        if layout.tensor_size == 1:
            return None
        if name in (EMBEDDING, HEAD):
            token_ids = layout.vocabulary(self._config.vocab_size)
            return Part(dim=0, start=token_ids.start, stop=token_ids.stop)
        by_outputs, by_inputs = _BY_OUTPUTS.fullmatch(name), _BY_INPUTS.fullmatch(name)
        if by_outputs is not None:
            num_parts = layout.tensor_size
            if by_outputs[1] in "kv":
                num_parts = min(num_parts, self._config.num_kv_heads)
            return self._equal_part(0, shape[0], num_parts)
        if by_inputs is not None and by_inputs[1] == "weight":
            return self._equal_part(1, shape[1], layout.tensor_size)
        return None

    def _equal_part(self, dim: int, size: int, num_parts: int) -> Part:
        """With fewer parts than ranks, neighbours have the same."""
        index = self._layout.tensor_rank * num_parts // self._layout.tensor_size
        return Part(dim=dim, start=index * size // num_parts, stop=(index + 1) * size // num_parts)

    def _is_added_elsewhere(self, name: str) -> bool:
        by_inputs = _BY_INPUTS.fullmatch(name)
        return by_inputs is not None and by_inputs[1] == "bias" and self._layout.tensor_rank > 0
