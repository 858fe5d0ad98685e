"""What is the embedding of a prompt? Hidden states in, step by step; their mean out after the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker_svc.pooled_rows import PooledRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """By slot, little-endian float32 [hidden]. One that is not all numbers is in `failed_slots` only."""

    vectors: dict[int, bytes]
    failed_slots: tuple[int, ...]


NO_EMBEDDINGS = Embeddings(vectors={}, failed_slots=())


class Pooler:
    """Keeps the sums of prompts that run in several steps, by slot.

    They are of float64, so that an embedding does not depend on how its prompt is cut into steps.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}  # each [hidden]

    def bind(self, slot: int) -> None:
        """What was pooled in this slot is nobody's any more."""
        self._sums.pop(slot, None)

    def pool(self, hidden: Tensor, rows: PooledRows) -> Embeddings:
        """`hidden` [rows, hidden] are the states of `rows`."""
        slots, complete = [], []
        for slot, part, num_rows, ends in rows.parts():
            total = hidden[part].sum(dim=0, dtype=torch.float64)
            if (earlier := self._sums.pop(slot, None)) is not None:
                total += earlier
            if ends:
                slots.append(slot)
                complete.append((total / num_rows).float())
            else:
                self._sums[slot] = total
        if not slots:
            return NO_EMBEDDINGS
        vectors = torch.stack(complete).cpu().numpy().astype("<f4", copy=False)
        is_good = np.isfinite(vectors).all(axis=1).tolist()
        return Embeddings(
            vectors={
                slot: vector.tobytes() for slot, vector, good in zip(slots, vectors, is_good, strict=True) if good
            },
            failed_slots=tuple(slot for slot, good in zip(slots, is_good, strict=True) if not good),
        )
