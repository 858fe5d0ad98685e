"""What a program may give as a prompt -> its text, if it has one, and its token ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.llm.unicode import require_unicode
from pageloom.plan import ModelInfo
from pageloom.sampling_params import check_token_ids
from pageloom.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """`prompt` is the text that the answer is shown with; it is not read."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt
_ACCEPTED = 'a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`text` is None if only token ids were given."""

    text: str | None
    token_ids: tuple[int, ...]
    cache_salt: str = ""


def listed(prompts: PromptType | Sequence[PromptType], name: str = "prompts") -> list[PromptType]:
    """One prompt or several -> a list. Raises InvalidRequest."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if isinstance(prompts, Sequence) and prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Iterable):
        raise InvalidRequest(f"{name} must be {_ACCEPTED}, or a list of these, not {prompts!r}", param=name)
    return list(prompts)  # type: ignore[arg-type]


def read_prompt(given: PromptType, tokenizer: Tokenizer, info: ModelInfo, name: str = "prompt") -> Prompt:
    """Raises InvalidRequest or ContextLengthExceeded."""
    text, token_ids, cache_salt = _parts(given, name)
    require_unicode(cache_salt, f"{name}.cache_salt")
    if token_ids is None:
        assert text is not None
        if len(text) > info.max_model_len * tokenizer.longest_token_len:
            raise _too_long(info, f"{len(text)} characters", name)
        require_unicode(text, name)
        token_ids = tokenizer.encode(text, add_special_tokens=True)
    return Prompt(text=text, token_ids=checked(token_ids, info, name), cache_salt=cache_salt)


def checked(token_ids: Sequence[int], info: ModelInfo, name: str = "prompt") -> tuple[int, ...]:
    """Raises InvalidRequest or ContextLengthExceeded."""
    if not token_ids:
        raise InvalidRequest(f"{name} is empty: it makes no tokens", param=name)
    check_token_ids(name, list(token_ids), info.vocab_size)
    if len(token_ids) >= info.max_model_len:
        raise _too_long(info, f"{len(token_ids)} tokens, and the output needs one", name)
    return tuple(token_ids)


def _parts(given: object, name: str) -> tuple[str | None, Sequence[int] | None, str]:
    text: object = None
    token_ids: object = None
    cache_salt: object = ""
    if isinstance(given, str):
        text = given
    elif isinstance(given, dict):
        unknown = given.keys() - {"prompt", "prompt_token_ids", "cache_salt"}
        if unknown:
            raise InvalidRequest(f"{name} has {min(unknown)!r}; it may be {_ACCEPTED}", param=name)
        text, token_ids, cache_salt = given.get("prompt"), given.get("prompt_token_ids"), given.get("cache_salt") or ""
    else:
        token_ids = given
    if token_ids is None:
        if not isinstance(text, str):
            raise InvalidRequest(f"{name} must be {_ACCEPTED}", param=name)
        return text, None, str(cache_salt)
    if not isinstance(token_ids, Sequence) or not all(type(token_id) is int for token_id in token_ids):
        raise InvalidRequest(f"{name} must be {_ACCEPTED}", param=name)
    return text if isinstance(text, str) else None, token_ids, str(cache_salt)


def _too_long(info: ModelInfo, has: str, name: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {info.max_model_len} tokens. However, {name} has {has}.", param=name
    )
