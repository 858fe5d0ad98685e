"""The default model in transformers, float32: what greedy decoding must produce, token for token."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

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
    outputs: dict[int, list[int]] = {}
    for batch in _batches(prompts):
        outputs |= zip(batch, _greedy_batch(model, [prompts[i] for i in batch], max_new_tokens), strict=True)
    return [outputs[i] for i in range(len(prompts))]


def reference_choices(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[list[int]]:
    """What greedy decoding would go on with after each prompt and after each beginning of its answer; the answers are
    of one length. An answer is the greedy one exactly if it equals this, which takes one run and not one per token."""
    outputs: dict[int, list[int]] = {}
    for batch in _batches(prompts):
        texts = [[*prompts[i], *answers[i][:-1]] for i in batch]
        outputs |= zip(batch, _choices(reference_model(), texts, len(answers[0])), strict=True)
    return [outputs[i] for i in range(len(prompts))]


def _batches(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    return (order[start : start + _BATCH_SIZE] for start in range(0, len(order), _BATCH_SIZE))


def _padded(texts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and positions [texts, width], padded on the left."""
    width = max(map(len, texts))
    token_ids = torch.tensor([[0] * (width - len(text)) + list(text) for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    return token_ids, mask, (mask.cumsum(dim=1) - 1).clamp(min=0)


@torch.inference_mode()
def _choices(model: PreTrainedModel, texts: Sequence[Sequence[int]], num_positions: int) -> list[list[int]]:
    """The likeliest token after each of the last positions of each text."""
    token_ids, mask, positions = _padded(texts)
    output = model(token_ids, attention_mask=mask, position_ids=positions, logits_to_keep=num_positions)
    choices: list[list[int]] = output.logits.argmax(dim=-1).tolist()
    return choices


@torch.inference_mode()
def _greedy_batch(model: PreTrainedModel, prompts: list[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    token_ids, mask, _ = _padded(prompts)
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
