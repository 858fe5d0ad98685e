"""The default model in transformers, float32: what greedy decoding must produce, token for token."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel
from transformers.utils import logging

from pageloom.model_files import locate_model

_BATCH_SIZE = 8


@functools.cache
def reference_model() -> PreTrainedModel:
    """Loads the default model once for the whole session."""
    path = locate_model("").path
    logging.disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    model.eval()
    return model


def reference_greedy(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, model: PreTrainedModel | None = None
) -> list[list[int]]:
    """The `max_new_tokens` likeliest continuations of each prompt, one token at a time, past any end token.

    Prompts of similar length run as one left-padded batch. In float32 its numbers differ from those of
    a prompt alone by some 1e-5, and the two likeliest tokens by far more.
    """
    model = model or reference_model()
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    outputs: dict[int, list[int]] = {}
    for start in range(0, len(order), _BATCH_SIZE):
        batch = order[start : start + _BATCH_SIZE]
        outputs |= zip(batch, _greedy_batch(model, [prompts[i] for i in batch], max_new_tokens), strict=True)
    return [outputs[i] for i in range(len(prompts))]


@torch.inference_mode()
def _greedy_batch(model: PreTrainedModel, prompts: list[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    width = max(len(prompt) for prompt in prompts)
    token_ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache = None
    drawn: list[torch.Tensor] = []
    while True:
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -token_ids.shape[1] :]
        output = model(
            token_ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        token_ids = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        drawn.append(token_ids)
        if len(drawn) == max_new_tokens:
            return torch.cat(drawn, dim=1).tolist()
        cache = output.cache
        mask = torch.cat((mask, torch.ones_like(token_ids)), dim=1)
