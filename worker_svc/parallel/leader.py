"""Rank 0's model and KV blocks: to the runner like any others, while every other rank does the same with its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from pageloom_kernels import AttentionBatch, HiddenTaps
from worker_svc.batch_inputs import BatchInputs
from worker_svc.kv_cache import KvCache
from worker_svc.models.config import LlamaConfig
from worker_svc.models.model import Destination, Model
from worker_svc.parallel.channel import CommandSender
from worker_svc.parallel.commands import CopyBlocks, Embed, Forward, Logits
from worker_svc.parallel.ranks import RankGroup


class LeaderModel:
    """A `model.Model`: `part` is that of rank 0."""

    def __init__(self, part: Model, ranks: RankGroup, sender: CommandSender) -> None:
        self._part = part
        self._ranks = ranks
        self._sender = sender
        layout = ranks.layout
        self._stage_peers = range(1, layout.tensor_size)
        self._earlier_stages = range(layout.tensor_size, layout.num_ranks)
        # Steps that the earlier stages know of and this one has yet to run.
        self._num_announced = 0

    @property
    def config(self) -> LlamaConfig:
        return self._part.config

    @property
    def num_positions(self) -> int:
        return self._part.num_positions

    def destinations(self) -> Mapping[str, Destination]:
        return self._part.destinations()

    def finish_loading(self) -> None:
        self._part.finish_loading()

    def announce(self, inputs: BatchInputs) -> None:
        """Has the earlier stages begin a step. `forward` is called for each announced one, in the same order."""
        self._send(inputs.token_ids, inputs.attention, inputs.output_rows, self._earlier_stages)
        self._num_announced += 1

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        kv_caches: Sequence[Tensor],
        output_rows: Tensor,
        taps: HiddenTaps | None = None,
    ) -> Tensor:
        assert taps is None or not self._earlier_stages, "each stage has only its own layers' hidden states"
        if self._num_announced:
            self._num_announced -= 1
        else:
            self._send(token_ids, batch, output_rows, self._earlier_stages)
        # Not before: the peers of this stage are to do everything in the order in which it is done here.
        self._send(token_ids, batch, output_rows, self._stage_peers)
        return self._part.forward(token_ids, batch, kv_caches, output_rows, taps)

    def _send(self, token_ids: Tensor, batch: AttentionBatch, output_rows: Tensor, ranks: range) -> None:
        if ranks:
            self._sender.send(Forward(token_ids=token_ids, batch=batch, output_rows=output_rows), ranks)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._part.logits(self._share(hidden, most_likely=False))

    def most_likely(self, hidden: Tensor) -> Tensor:
        return self._part.most_likely(self._share(hidden, most_likely=True))

    def embed(self, token_ids: Tensor) -> Tensor:
        assert not self._earlier_stages, "the last stage may have no embedding"
        if self._stage_peers:
            self._sender.send(Embed(token_ids=token_ids), self._stage_peers)
        return self._part.embed(token_ids)

    def first_layers(self, num_layers: int) -> Self:
        raise AssertionError("the other ranks have no part in it")

    def _share(self, hidden: Tensor, *, most_likely: bool) -> Tensor:
        if not self._stage_peers:
            return hidden
        self._sender.send(Logits(num_rows=len(hidden), most_likely=most_likely), self._stage_peers)
        return self._ranks.share_from_root(hidden.contiguous())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeaderKvCache(KvCache):
    """The part of rank 0."""

    sender: CommandSender
    num_ranks: int

    def copy(self, source_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> None:
        if source_ids:
            command = CopyBlocks(source_ids=source_ids, target_ids=target_ids)
            self.sender.send(command, range(1, self.num_ranks))
        KvCache.copy(self, source_ids, target_ids)
