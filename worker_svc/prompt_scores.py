"""How likely was each token of a prompt? Hidden states in, log-probabilities of the tokens that follow them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pageloom.outputs import PromptLogprobs
from worker_svc.prompt_rows import PromptRows

# Of the logits that exist at one time: 32 MB of float32, whatever the chunk and the vocabulary.
_MAX_LOGITS = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScores:
    """By slot. One with a log-probability that is not a number is in `failed_slots` only."""

    logprobs: dict[int, PromptLogprobs]
    failed_slots: tuple[int, ...]


NO_SCORES = PromptScores(logprobs={}, failed_slots=())


def score_prompts(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, rows: PromptRows, vocab_size: int
) -> PromptScores:
    """`hidden` [rows, hidden] are the states of `rows`; `logits` is the model's."""
    num_top = min(int(rows.num_tops.max()), vocab_size)
    token_ids = torch.from_numpy(rows.token_ids).to(hidden.device)
    size = max(1, _MAX_LOGITS // vocab_size)
    chunks = [
        _score(logits(hidden_rows).float(), tokens, num_top)
        for hidden_rows, tokens in zip(torch.split(hidden, size), torch.split(token_ids, size), strict=True)
    ]
    scores, ranks, top_ids, top_scores = (torch.cat(columns).cpu() for columns in zip(*chunks, strict=True))
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
            top_token_ids=tuple(top_ids[part, :num_asked].flatten().tolist()),
            top_logprobs=tuple(top_scores[part, :num_asked].flatten().tolist()),
        )
    return PromptScores(logprobs=logprobs, failed_slots=tuple(failed_slots))


def _score(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities and ranks [rows] of `token_ids`, ids and log-probabilities [rows, num_top] of the likeliest.

    Both come of the same subtraction, so that the likeliest token's is the same number in both, which evaluation
    tools rely on.
    """
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    # One logit that is no finite number spoils the row, also for tokens whose own logit is.
    normalizer = normalizer.where(normalizer.isfinite(), torch.nan)
    chosen = logits.gather(-1, token_ids[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    top = logits.topk(num_top, dim=-1)
    return (chosen - normalizer)[:, 0], ranks, top.indices, top.values - normalizer
