"""How likely was each token of a prompt? Hidden states in, log-probabilities of the tokens that follow them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pageloom.outputs import PromptLogprobs
from worker_svc.prompt_rows import PromptRows

# Of the logits that exist at one time: 16 MB of float32, whatever the chunk and the vocabulary.
_MAX_LOGITS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """By slot. One with a log-probability that is not a number is in `failed_slots` only."""

    logprobs: dict[int, PromptLogprobs]
    failed_slots: tuple[int, ...]


NO_SCORES = PromptScores(logprobs={}, failed_slots=())


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """What is kept of each row. Made before any logits are: what is kept from between them would leave holes in the
    memory that the next ones do not fit."""

    scores: Tensor  # [rows] float32
    ranks: Tensor  # [rows] int64
    top_token_ids: Tensor  # [rows, top] int64
    top_scores: Tensor  # [rows, top] float32


def score_prompts(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: PromptRows, vocab_size: int
) -> PromptScores:
    """`hidden` [rows, hidden] are the states of `rows`; `logits` is the model's."""
    num_rows, num_top = len(hidden), min(int(rows.num_tops.max()), vocab_size)
    token_ids = torch.from_numpy(rows.token_ids).to(hidden.device)
    columns = _Columns(
        torch.empty(num_rows, dtype=torch.float32, device=hidden.device),
        torch.empty(num_rows, dtype=torch.int64, device=hidden.device),
        torch.empty(num_rows, num_top, dtype=torch.int64, device=hidden.device),
        torch.empty(num_rows, num_top, dtype=torch.float32, device=hidden.device),
    )
    size = max(1, _MAX_LOGITS // vocab_size)
    for start in range(0, num_rows, size):
        part = slice(start, start + size)
        _score(logits(hidden[part]).float(), token_ids[part], columns, part)
    return _by_slot(columns, rows)


def _by_slot(columns: _Columns, rows: PromptRows) -> PromptScores:
    scores, ranks = columns.scores.cpu(), columns.ranks.cpu()
    top_token_ids, top_scores = columns.top_token_ids.cpu(), columns.top_scores.cpu()
    bad_rows = scores.isnan()
    logprobs: dict[int, PromptLogprobs] = {}
    failed_slots: list[int] = []
    for slot, first_index, num_asked, part in rows.parts():
        if bad_rows[part].any():
            failed_slots.append(slot)
            continue
        logprobs[slot] = PromptLogprobs(
            first_index=first_index,
            logprobs=tuple(scores[part].tolist()),
            ranks=tuple(ranks[part].tolist()),
            top_token_ids=tuple(top_token_ids[part, :num_asked].flatten().tolist()),
            top_logprobs=tuple(top_scores[part, :num_asked].flatten().tolist()),
        )
    return PromptScores(logprobs=logprobs, failed_slots=tuple(failed_slots))


def _score(logits: Tensor, token_ids: Tensor, columns: _Columns, part: slice) -> None:
    """Fills a part of the columns.

    Both kinds of log-probabilities come of the same subtraction, so that the likeliest token's is the same number in
    both, which evaluation tools rely on.
    """
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    # One logit that is no finite number spoils the row, also for tokens whose own logit is.
    normalizer = normalizer.where(normalizer.isfinite(), torch.nan)
    chosen = logits.gather(-1, token_ids[:, None])
    columns.scores[part] = (chosen - normalizer)[:, 0]
    columns.ranks[part] = (logits > chosen).sum(dim=-1, dtype=torch.int32) + 1
    num_top = columns.top_scores.shape[1]
    if num_top:
        top = logits.topk(num_top, dim=-1)
        columns.top_token_ids[part] = top.indices
        columns.top_scores[part] = top.values - normalizer
