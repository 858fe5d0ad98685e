"""Which token does a row draw? Truncation of the distribution, and the draw itself, vectorised over rows.

A row's result depends on its own logits and uniform number only: what is kept is decided by comparing
each probability with the row's own threshold, and the draw walks the vocabulary in the order of the
token ids. So neither the other rows of the batch nor the order that a sort gives equal values matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# The likeliest tokens that are looked at before a row's whole vocabulary is sorted: on a CPU a sort
# of 49,152 values costs as much as twenty such selections.
NUM_CANDIDATES = 1024
_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truncation:
    """Which tokens may be drawn; each is [rows, 1]."""

    top_k: Tensor  # int64, 1 to vocab; vocab keeps all
    top_p: Tensor  # float32, above 0; 1 keeps all
    min_p: Tensor  # float32, 0 keeps all


def truncate(probs: Tensor, truncation: Truncation) -> Tensor:
    """Zeroes what min_p, then top_k, then top_p drop from `probs` [rows, vocab]; the rest is not rescaled.

    Tokens as likely as the last kept one are kept too. top_p is of the mass that min_p and top_k left.
    """
    floor = truncation.min_p * probs.amax(dim=-1, keepdim=True)
    probs = torch.where(probs >= floor, probs, 0.0)
    num_candidates = min(NUM_CANDIDATES, probs.shape[-1]) if probs.device.type == "cpu" else probs.shape[-1]
    threshold, exact = _threshold(probs, truncation, num_candidates)
    if num_candidates < probs.shape[-1] and not exact.all():
        rows = torch.nonzero(~exact)[:, 0]
        rest = Truncation(top_k=truncation.top_k[rows], top_p=truncation.top_p[rows], min_p=truncation.min_p[rows])
        threshold[rows], _ = _threshold(probs[rows], rest, probs.shape[-1])
    return torch.where(probs >= threshold, probs, 0.0)


def _threshold(probs: Tensor, truncation: Truncation, num_candidates: int) -> tuple[Tensor, Tensor]:
    """The smallest kept probability [rows, 1], and whether `num_candidates` sufficed to find it [rows]."""
    if num_candidates < probs.shape[-1]:
        ordered = probs.topk(num_candidates, dim=-1).values
    else:
        ordered = probs.sort(dim=-1, descending=True).values
    keeps_all = truncation.top_k >= probs.shape[-1]
    kth = ordered.gather(-1, truncation.top_k.clamp(max=num_candidates) - 1)
    kth = torch.where(keeps_all, 0.0, kth)
    goal = truncation.top_p * torch.where(probs >= kth, probs, 0.0).sum(dim=-1, keepdim=True)
    # A token is kept while those before it have not reached the goal: at least the first always is.
    before = functional.pad(ordered.cumsum(dim=-1)[:, :-1], (1, 0))
    num_kept = (before < goal).sum(dim=-1, keepdim=True).clamp(min=1)
    nucleus = ordered.gather(-1, num_kept - 1)
    limited = truncation.top_p < 1.0
    threshold = torch.where(limited, torch.maximum(nucleus, kth), kth)
    k_found = keeps_all | (truncation.top_k <= num_candidates)
    p_found = ~limited | (num_kept < num_candidates)
    return threshold, (k_found & p_found)[:, 0]


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [rows] at which the cumulated `probs` [rows, vocab] pass `uniforms` [rows] times their sum.

    `probs` need not sum to 1. Chunks of the vocabulary are summed first and one of them is walked, in
    double precision: tokens of any probability keep their share, and a token of probability 0 is never drawn.
    """
    num_rows, vocab_size = probs.shape
    padded = functional.pad(probs, (0, -vocab_size % _CHUNK_TOKENS))
    chunks = padded.view(num_rows, -1, _CHUNK_TOKENS)
    chunk_cdf = chunks.sum(dim=-1).double().cumsum(dim=-1)  # [rows, chunks]
    target = uniforms[:, None] * chunk_cdf[:, -1:]
    chunk = torch.searchsorted(chunk_cdf, target, right=True).clamp(max=chunks.shape[1] - 1)  # [rows, 1]
    before = functional.pad(chunk_cdf, (1, 0)).gather(-1, chunk)
    inner = chunks.gather(1, chunk[:, :, None].expand(-1, 1, _CHUNK_TOKENS))[:, 0].double()
    inner_cdf = inner.cumsum(dim=-1)  # [rows, chunk tokens]
    # The chunk's sum is rounded otherwise than its parts, so the target may lie past its last token.
    last = torch.searchsorted(inner_cdf, inner_cdf[:, -1:].contiguous())
    offset = torch.minimum(torch.searchsorted(inner_cdf, target - before, right=True), last)
    return (chunk * _CHUNK_TOKENS + offset)[:, 0].clamp(max=vocab_size - 1)
