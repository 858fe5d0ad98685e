"""What a model asks of the other ranks that hold parts of it: sums, gathers, and the hidden states between stages."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from worker_svc.parallel.layout import Layout
from worker_svc.parallel.shared_sum import MAX_PART_BYTES, SharedSum
from worker_svc.parallel.watch import reaching_others


class Ranks(Protocol):
    """All ranks of a group call the same methods in the same order, each with its part. Every method raises GroupLost
    if another rank is gone."""

    @property
    def layout(self) -> Layout: ...

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the parts of all ranks of this stage, the same at each to the last bit; it may take `part`'s
        place."""

    def embed(self, token_ids: Tensor, rows: Tensor) -> Tensor:
        """The embeddings [tokens, hidden] of token ids [tokens]; `rows` are those of this rank's part of them."""

    def join_logits(self, part: Tensor) -> Tensor:
        """At tensor rank 0 the logits [rows, vocab] of all token ids; elsewhere `part`, those of this rank's."""

    def largest(self, values: Tensor, indexes: Tensor) -> tuple[Tensor, Tensor]:
        """At tensor rank 0 each row's largest logit and its token id, from each rank's own with its index in the rank's
        part of the logits; elsewhere anything."""

    def send(self, hidden: Tensor) -> None:
        """To the next stage; [tokens, hidden], which must not be written any more."""

    def receive(self, hidden: Tensor) -> Tensor:
        """Fills `hidden` with what the stage before sent, and returns it."""


class Alone:
    """One rank that holds the whole model."""

    layout = Layout()

    def sum(self, part: Tensor) -> Tensor:
        return part

    def embed(self, token_ids: Tensor, rows: Tensor) -> Tensor:
        return functional.embedding(token_ids, rows)

    def join_logits(self, part: Tensor) -> Tensor:
        return part

    def largest(self, values: Tensor, indexes: Tensor) -> tuple[Tensor, Tensor]:
        return values, indexes

    def send(self, hidden: Tensor) -> None:
        raise AssertionError("there is one stage")

    def receive(self, hidden: Tensor) -> Tensor:
        raise AssertionError("there is one stage")


ALONE = Alone()


class RankGroup:
    """This process among the ranks that torchrun started. `tensor_group` are those of its stage, which have a
    `shared_sum` if they compute on one machine's CPU."""

    def __init__(
        self,
        layout: Layout,
        vocab_size: int,
        tensor_group: dist.ProcessGroup | None,
        shared_sum: SharedSum | None = None,
    ) -> None:
        self.layout = layout
        self._vocabularies = [layout.vocabulary(vocab_size, rank) for rank in range(layout.tensor_size)]
        self._tensor_group = tensor_group
        self._shared_sum = shared_sum
        self._root = layout.stage_ranks(layout.stage)[0]
        # What is on its way to the next stage, so that this one need not wait for it.
        self._sending: deque[tuple[dist.Work, Tensor]] = deque()

    def sum(self, part: Tensor) -> Tensor:
        if self.layout.tensor_size == 1:
            return part
        with reaching_others():
            if self._shared_sum is not None and part.nbytes <= MAX_PART_BYTES:
                self._shared_sum.sum(part)
            else:
                dist.all_reduce(part, group=self._tensor_group)
        return part

    def embed(self, token_ids: Tensor, rows: Tensor) -> Tensor:
        if self.layout.tensor_size == 1:
            return functional.embedding(token_ids, rows)
        indexes = token_ids - self._vocabularies[self.layout.tensor_rank].start
        is_elsewhere = (indexes < 0) | (indexes >= len(rows))
        embedded = functional.embedding(indexes.masked_fill(is_elsewhere, 0), rows)
        return self.sum(embedded.masked_fill_(is_elsewhere[:, None], 0))

    def join_logits(self, part: Tensor) -> Tensor:
        if self.layout.tensor_size == 1:
            return part
        # A gather takes equal sizes; the first rank's is the largest.
        parts = self._gather(functional.pad(part, (0, len(self._vocabularies[0]) - part.shape[1])))
        if parts is None:
            return part
        sizes = map(len, self._vocabularies)
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)

    def largest(self, values: Tensor, indexes: Tensor) -> tuple[Tensor, Tensor]:
        if self.layout.tensor_size == 1:
            return values, indexes
        # Indexes are far below what float32 counts to, so both go in one message.
        parts = self._gather(torch.stack((values.float(), indexes.float())))
        if parts is None:
            return values, indexes
        by_rank = torch.stack(parts, dim=1)  # [2, ranks, rows]
        starts = by_rank.new_tensor([token_ids.start for token_ids in self._vocabularies])
        largest, rank = by_rank[0].max(dim=0, keepdim=True)
        return largest[0], (by_rank[1] + starts[:, None]).gather(0, rank)[0].long()

    def send(self, hidden: Tensor) -> None:
        # As many as there are stages after this one may wait there to be taken.
        with reaching_others():
            while len(self._sending) >= self.layout.pipeline_size:
                self._sending.popleft()[0].wait()
            work = dist.isend(hidden, self.layout.rank - self.layout.tensor_size)
        assert work is not None
        self._sending.append((work, hidden))

    def receive(self, hidden: Tensor) -> Tensor:
        with reaching_others():
            dist.recv(hidden, self.layout.rank + self.layout.tensor_size)
        return hidden

    def share_from_root(self, tensor: Tensor) -> Tensor:
        """Fills `tensor` at every rank of this stage with that of its tensor rank 0."""
        if self.layout.tensor_size > 1:
            with reaching_others():
                dist.broadcast(tensor, self._root, group=self._tensor_group)
        return tensor

    def numbers(self, number: int) -> list[int]:
        """Those of all ranks of the group."""
        numbers: list[int | None] = [None] * self.layout.num_ranks
        with reaching_others():
            dist.all_gather_object(numbers, number)
        return [number for number in numbers if number is not None]

    def _gather(self, part: Tensor) -> list[Tensor] | None:
        is_root = self.layout.tensor_rank == 0
        parts = [torch.empty_like(part) for _ in range(self.layout.tensor_size)] if is_root else None
        with reaching_others():
            dist.gather(part, parts, dst=self._root, group=self._tensor_group)
        return parts
