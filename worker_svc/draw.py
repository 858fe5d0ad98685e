"""Which token does a row draw? Truncation of the distribution, and the draw itself, vectorised over rows.

A row's result depends on its own logits and uniform number only: what is kept is decided by comparing
each probability with the row's own threshold, and the draw walks the vocabulary in the order of the
token ids. So neither the other rows of the batch nor the order that a sort gives equal values matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

# On a CPU, the likeliest tokens that are looked at before a row's whole vocabulary is sorted: sorting
# 49,152 values costs four times as much as selecting these.
_NUM_CANDIDATES = 1024
_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truncation:
    """Which tokens may be drawn; each is [rows, 1]."""

    top_k: Tensor  # int64, 1 to vocab; vocab keeps all
    top_p: Tensor  # float32, above 0; 1 keeps all
    min_p: Tensor  # float32, 0 keeps all


def truncate(probs: Tensor, truncation: Truncation) -> None:
    """Zeroes in `probs` [rows, vocab] what min_p, then top_k, then top_p drop. The rest is not rescaled.

    Tokens as likely as the last kept one are kept too. top_p is of the mass that min_p and top_k left.
    """
    probs.mul_(probs >= truncation.min_p * probs.amax(dim=-1, keepdim=True))
    if probs.device.type == "cpu" and probs.shape[-1] > _NUM_CANDIDATES:
        threshold, found = _threshold(probs, truncation, probs.topk(_NUM_CANDIDATES, dim=-1).values)
        rows = torch.nonzero(~found)[:, 0]
        if len(rows) > 0:
            threshold[rows] = _exact_threshold(probs[rows], _select(truncation, rows))
    else:
        threshold = _exact_threshold(probs, truncation)
    probs.mul_(probs >= threshold)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [rows] at which the cumulated `probs` [rows, vocab] pass `uniforms` [rows] times their sum.

    `probs` need not sum to 1. Chunks of the vocabulary are summed first and one of them is walked, in
    double precision: tokens of any probability keep their share, and a token of probability 0 is never drawn.
    """
    num_rows, vocab_size = probs.shape
    if vocab_size % _CHUNK_TOKENS:
        probs = functional.pad(probs, (0, -vocab_size % _CHUNK_TOKENS))
    chunks = probs.view(num_rows, -1, _CHUNK_TOKENS)
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


def _exact_threshold(probs: Tensor, truncation: Truncation) -> Tensor:
    if probs.device.type == "cpu":
        # NumPy sorts values alone, and by SIMD: torch would sort indices with them in three times the time.
        ordered = torch.from_numpy(np.sort(probs.numpy(), axis=-1)).flip(-1)
    else:
        ordered = probs.sort(dim=-1, descending=True).values
    return _threshold(probs, truncation, ordered)[0]


def _threshold(probs: Tensor, truncation: Truncation, ordered: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest kept probability [rows, 1], and whether `ordered` sufficed to find it [rows].

    `ordered` [rows, candidates] are each row's largest probabilities, or all, in falling order.
    """
    num_candidates = ordered.shape[-1]
    cdf = ordered.cumsum(dim=-1)
    keeps_all = truncation.top_k >= probs.shape[-1]
    kth = ordered.gather(-1, truncation.top_k.clamp(max=num_candidates) - 1).masked_fill(keeps_all, 0.0)
    # Below the smallest candidate there may be more tokens as likely as the k-th.
    k_found = keeps_all | (kth > ordered[:, -1:])
    # At least 1 even in a row of NaN, which must get through here as any other.
    num_kept = (ordered >= kth).sum(dim=-1, keepdim=True).clamp(min=1)
    mass = torch.where(keeps_all, probs.sum(dim=-1, keepdim=True), cdf.gather(-1, num_kept - 1))
    goal = truncation.top_p * mass
    # The nucleus ends with the first token that reaches the goal.
    last = torch.searchsorted(cdf, goal).clamp(max=num_candidates - 1)
    nucleus = ordered.gather(-1, last)
    limited = truncation.top_p < 1.0
    threshold = torch.where(limited, torch.maximum(nucleus, kth), kth)
    p_found = ~limited | (cdf[:, -1:] >= goal)
    return threshold, (k_found & p_found)[:, 0]


def _select(truncation: Truncation, rows: Tensor) -> Truncation:
    return Truncation(top_k=truncation.top_k[rows], top_p=truncation.top_p[rows], min_p=truncation.min_p[rows])
