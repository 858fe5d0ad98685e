"""What does the worker ask of a model, whatever computes it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from torch import Tensor

from pageloom_kernels import AttentionBatch, HiddenTaps
from worker_svc.models.config import LlamaConfig
from worker_svc.models.quantized import BlockDestination

Destination = Tensor | BlockDestination


class Model(Protocol):
    """Its weights are uninitialised until `destinations` are filled and `finish_loading` was called."""

    @property
    def config(self) -> LlamaConfig: ...

    @property
    def num_positions(self) -> int:
        """The longest context that it is prepared for."""

    def destinations(self) -> Mapping[str, Destination]:
        """Where each tensor of the checkpoint goes, by its name in a Hugging Face checkpoint."""

    def finish_loading(self) -> None:
        """Puts the loaded weights into the layout that the device multiplies fastest."""

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

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> token ids [rows] int64; -1 where the largest logit is not a finite number."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] int64 -> [tokens, hidden]."""

    def first_layers(self, num_layers: int) -> Self:
        """A model of the first layers, the norm and the head, over the same weights, which must be loaded."""
