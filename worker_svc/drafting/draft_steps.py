"""How does a model guess several tokens for each of many slots? The loop that all drafting models have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom_kernels import AttentionBatch
from worker_svc.batch_inputs import Rows, attention_batch
from worker_svc.drafting.drafter import DraftRequests, Drafts
from worker_svc.slots import SlotTable

# Token ids and the batch of one token for each of some sequences, and which of those of the step before they are; to
# the likeliest next token of each, -1 if the model's numbers are not finite.
NextTokens = Callable[[Tensor, AttentionBatch, Tensor], Tensor]


def guess_on(
    first: NDArray[np.int64],
    requests: DraftRequests,
    starts: NDArray[np.int64],
    table: SlotTable,
    device: torch.device,
    next_tokens: NextTokens,
) -> NDArray[np.int64]:
    """Guesses [seqs, most drafts], -1 after the last of a sequence: `first` [seqs], which may be -1 too, and what
    follows it up to the sequence's limit. The first guess is computed at position `starts`, the others after it."""
    limits = np.where(first < 0, 0, requests.limits)
    guesses = np.full((len(first), max(1, int(limits.max(initial=0)))), -1, np.int64)
    guesses[:, 0] = first
    kept = np.arange(len(first))
    for index in range(1, guesses.shape[1]):
        more = (limits[kept] > index) & (guesses[kept, index - 1] >= 0)
        kept = kept[more]
        if kept.size == 0:
            break
        lens = np.ones_like(kept)
        rows = Rows.of(requests.slots[kept], starts[kept] + index - 1, lens)
        batch = attention_batch(table, rows.slots, lens, rows, device)
        token_ids = torch.from_numpy(guesses[kept, index - 1]).to(device)
        still = torch.from_numpy(np.flatnonzero(more)).to(device)
        guesses[kept, index] = next_tokens(token_ids, batch, still).cpu().numpy()
    return guesses


def flat(guesses: NDArray[np.int64]) -> Drafts:
    """The same guesses without what is after the last of each sequence."""
    made = guesses >= 0
    return Drafts(lens=made.sum(axis=1), token_ids=guesses[made])
