"""Words that must not come -> the token sequences that must not."""

from __future__ import annotations

from collections.abc import Iterable

from pageloom.errors import InvalidRequest
from pageloom.tokenizer import Tokenizer


def bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as they come at the beginning of a text and after a space, which is vLLM's rule:
    the second only if it differs by its first token alone. Raises InvalidRequest."""
    sequences: list[tuple[int, ...]] = []
    for word in words:
        text = word.lstrip(" ")
        at_start = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not at_start:
            raise InvalidRequest(f"bad_words has {word!r}, which makes no tokens", param="bad_words")
        after_space = tuple(tokenizer.encode(" " + text, add_special_tokens=False))
        sequences.append(at_start)
        if len(after_space) == len(at_start) and after_space[0] != at_start[0]:
            sequences.append(after_space)
    return tuple(dict.fromkeys(sequences))
