"""transformers' tokenizer of the default model: what ours must equal, token for token."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from pageloom.model_files import locate_model


def from_gguf(path: Path) -> PreTrainedTokenizerFast:
    with warnings.catch_warnings():
        # The gguf package's reader, as transformers calls it.
        warnings.simplefilter("ignore")
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True
        )
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


@functools.cache
def reference_tokenizer() -> PreTrainedTokenizerFast:
    """With the text splitting of the model's own tokenizer.json, which splits off each digit first.

    From a GGUF file that says "smollm", transformers 5.24 takes GPT-2's instead, and so cuts white
    space before a digit otherwise than the model was trained with.
    """
    tokenizer = from_gguf(locate_model("").path)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer
