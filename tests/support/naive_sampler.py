"""The sampler once more: one row at a time, in plain Python and double precision, by the definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pageloom.sampling_params import SamplingParams
from worker_svc.counter_random import uniforms


def naive_logits(
    logits: Sequence[float], sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int], eos: Sequence[int]
) -> list[float]:
    """Logits after bias, allowed tokens, bad words, min_tokens and penalties."""
    edited = list(logits)
    for token, bias in sampling.logit_bias.items():
        edited[token] += bias
    banned = set(range(len(logits))) - set(sampling.allowed_token_ids) if sampling.allowed_token_ids else set()
    for *first, last in sampling.bad_words:
        if list(output[max(len(output) - len(first), 0) :]) == first:
            banned.add(last)
    for token in banned:
        edited[token] = -math.inf
    if len(output) < sampling.min_tokens:
        for token in (*eos, *sampling.stop_token_ids):
            edited[token] = -math.inf
    for token in {*prompt, *output}:
        factor = sampling.repetition_penalty
        edited[token] = edited[token] / factor if edited[token] > 0 else edited[token] * factor
    for token in set(output):
        edited[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    return edited


def naive_distribution(logits: Sequence[float], sampling: SamplingParams) -> list[float]:
    """Probabilities after temperature, min_p, top_k and top_p; what is kept sums to less than 1."""
    largest = max(logits)
    weights = [math.exp((value - largest) / sampling.temperature) for value in logits]
    probs = [weight / sum(weights) for weight in weights]
    floor = sampling.min_p * max(probs)
    probs = [prob if prob >= floor else 0.0 for prob in probs]
    ordered = sorted(probs, reverse=True)
    if sampling.top_k > 0:
        kth = ordered[min(sampling.top_k, len(ordered)) - 1]
        probs = [prob if prob >= kth else 0.0 for prob in probs]
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    return probs


def _nucleus(probs: list[float], top_p: float) -> list[float]:
    goal, reached, last = top_p * sum(probs), 0.0, 0.0
    for prob in sorted(probs, reverse=True):
        if reached >= goal:
            break
        reached, last = reached + prob, prob
    return [prob if prob >= last else 0.0 for prob in probs]


def naive_draw(logits: Sequence[float], sampling: SamplingParams, choice_index: int, position: int) -> int:
    if sampling.greedy:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    probs = naive_distribution(logits, sampling)
    seed = np.array([sampling.seed], np.uint64)
    target = float(uniforms(seed, np.array([choice_index]), np.array([position]))[0]) * sum(probs)
    reached = 0.0
    for token, prob in enumerate(probs):
        reached += prob
        if reached > target:
            return token
    raise AssertionError("no token was reached")
