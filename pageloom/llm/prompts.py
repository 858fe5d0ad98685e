"""What a program may give as a prompt -> its text, if it has one, and its token ids."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.llm.argument_types import require_type, require_unicode
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
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray):
        raise InvalidRequest(f"{name} must be {_ACCEPTED}, or a list of these, not {reprlib.repr(prompts)}", param=name)
    return list(prompts)  # type: ignore[arg-type]


def read_prompt(given: PromptType, tokenizer: Tokenizer, info: ModelInfo, name: str = "prompt") -> Prompt:
    """Raises InvalidRequest or ContextLengthExceeded."""
    text, token_ids, cache_salt = _parts(given, name)
    if token_ids is None:
        assert text is not None
        require_unicode(name, text)
        if len(text) > info.max_model_len * tokenizer.longest_token_len:
            raise _too_long(info, f"{len(text)} characters", name)
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
    """Text and token ids, of which one is None at most, and the salt. Raises InvalidRequest."""
    key = "prompt" if isinstance(given, str) else "prompt_token_ids"
    parts: Mapping[str, Any] = given if isinstance(given, dict) else {key: given}
    if unknown := parts.keys() - {"prompt", "prompt_token_ids", "cache_salt"}:
        raise InvalidRequest(f"{name} has {min(map(repr, unknown))}; it may be {_ACCEPTED}", param=name)
    text, token_ids, cache_salt = parts.get("prompt"), parts.get("prompt_token_ids"), parts.get("cache_salt") or ""
    is_read = isinstance(text, str) if token_ids is None else isinstance(text, str | None) and _are_ids(token_ids)
    if not is_read:
        raise InvalidRequest(f"{name} must be {_ACCEPTED}, not {reprlib.repr(given)}", param=name)
    require_type(f"{name}.cache_salt", cache_salt, str)
    require_unicode(f"{name}.cache_salt", cache_salt)
    return text, token_ids, cache_salt


def _are_ids(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return False
    return all(type(token_id) is int for token_id in value)


def _too_long(info: ModelInfo, has: str, name: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {info.max_model_len} tokens. However, {name} has {has}.", param=name
    )
