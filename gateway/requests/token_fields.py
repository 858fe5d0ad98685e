"""Request fields that speak of tokens -> token ids: words that must not come, and which part of a prompt is kept."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.openai.schemas import GenerationRequest
from pageloom.errors import InvalidRequest
from pageloom.tokenizer import Tokenizer


def bad_word_ids(body: GenerationRequest, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as they come at the beginning of a text and after a space, which is vLLM's rule:
    the second only if it differs by its first token alone."""
    sequences: list[tuple[int, ...]] = []
    for word in body.bad_words or ():
        text = word.lstrip(" ")
        at_start = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not at_start:
            raise InvalidRequest(f"bad_words has {word!r}, which makes no tokens", param="bad_words")
        after_space = tuple(tokenizer.encode(" " + text, add_special_tokens=False))
        sequences.append(at_start)
        if len(after_space) == len(at_start) and after_space[0] != at_start[0]:
            sequences.append(after_space)
    return tuple(dict.fromkeys(sequences))


def kept_tokens(body: GenerationRequest, token_ids: Sequence[int], most: int) -> Sequence[int]:
    """The prompt cut to `truncate_prompt_tokens`, of which -1 stands for `most`: its end is kept, or with
    `truncation_side` right its beginning."""
    asked = body.truncate_prompt_tokens
    if asked is None:
        return token_ids
    if asked == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    length = max(most, 1) if asked == -1 else asked
    return token_ids[:length] if body.truncation_side == "right" else token_ids[-length:]
