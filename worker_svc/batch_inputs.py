"""What does the model get in this step? The runs of a plan as flat tensors, one row a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom_kernels import AttentionBatch
from worker_svc.slots import Runs, SlotTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchInputs:
    """One step's rows: the sequences' tokens, one sequence after the other."""

    token_ids: Tensor  # [tokens] int64
    attention: AttentionBatch
    # [outputs] int64: the rows of each sequence after which it draws, in the order of Runs.draw_slots, and then what
    # else is needed of the prompts.
    output_rows: Tensor


def build_batch_inputs(
    table: SlotTable, runs: Runs, device: torch.device, more_output_rows: Sequence[NDArray[np.int64]] = ()
) -> BatchInputs:
    """Gathers the rows of `runs` (at least one) from the table; all work is on whole arrays."""
    rows = Rows.of(runs.slots, runs.starts, runs.lens)
    ends, num_drafts = rows.query_start[1:][runs.draws], runs.num_drafts[runs.draws]
    output_rows = ends - 1
    if num_drafts.any():
        # The rows of a slot's drafts follow that of its last known token.
        first_outputs = np.cumsum(num_drafts + 1) - num_drafts - 1
        output_rows = np.arange(num_drafts.sum() + len(ends)) + np.repeat(
            output_rows - num_drafts - first_outputs, num_drafts + 1
        )
    if more_output_rows:
        output_rows = np.concatenate((output_rows, *more_output_rows))
    return BatchInputs(
        token_ids=_to_device(table.token_ids[rows.slots, rows.positions].astype(np.int64), device),
        attention=attention_batch(table, runs.slots, runs.lens, rows, device),
        output_rows=_to_device(output_rows, device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A step's tokens, one sequence after the other."""

    query_start: NDArray[np.int64]  # [seqs + 1]
    slots: NDArray[np.int64]  # [tokens]
    positions: NDArray[np.int64]  # [tokens]

    @classmethod
    def of(cls, slots: NDArray[np.int64], starts: NDArray[np.int64], lens: NDArray[np.int64]) -> Self:
        """Sequence i has the `lens[i]` tokens from `starts[i]` on."""
        query_start = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(lens, out=query_start[1:])
        row_slots = np.repeat(slots, lens)
        positions = np.arange(len(row_slots)) + np.repeat(starts - query_start[:-1], lens)
        return cls(query_start=query_start, slots=row_slots, positions=positions)


def attention_batch(
    table: SlotTable, slots: NDArray[np.int64], lens: NDArray[np.int64], rows: Rows, device: torch.device
) -> AttentionBatch:
    """What attention must know of these rows; the sequences with a single one come first."""
    blocks = table.block_tables[rows.slots, rows.positions // table.block_size].astype(np.int64)
    slot_mapping = blocks * table.block_size + rows.positions % table.block_size
    seq_lens = rows.positions[rows.query_start[1:] - 1] + 1
    max_seq_len = int(seq_lens.max())
    num_table_columns = -(-max_seq_len // table.block_size)
    return AttentionBatch(
        block_tables=_to_device(table.block_tables[slots, :num_table_columns], device),
        seq_lens=_to_device(seq_lens.astype(np.int32), device),
        query_start=_to_device(rows.query_start.astype(np.int32), device),
        num_decodes=int(np.count_nonzero(lens == 1)),
        max_query_len=int(lens.max()),
        max_seq_len=max_seq_len,
        positions=_to_device(rows.positions, device),
        slot_mapping=_to_device(slot_mapping, device),
    )


def _to_device(array: NDArray[np.int32] | NDArray[np.int64], device: torch.device) -> Tensor:
    # On the CPU the tensor shares the array, which nothing else keeps.
    return torch.from_numpy(array).to(device, non_blocking=True)
