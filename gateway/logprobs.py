"""Scored tokens -> the log-probability shapes of the two APIs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.choice import ScoredToken
from gateway.prompt_logprobs import LOWEST_LOGPROB, EchoedToken
from gateway.schemas import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from pageloom.outputs import TokenLogprobs
from pageloom.tokenizer import Tokenizer


def chat_logprobs(scored: Sequence[ScoredToken], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs(content=[_chat_token(token, tokenizer) for token in scored])


def completion_logprobs(
    scored: Sequence[ScoredToken], tokenizer: Tokenizer, echoed: Sequence[EchoedToken] = ()
) -> CompletionLogprobs:
    tokens: list[EchoedToken | ScoredToken] = [*echoed, *scored]
    return CompletionLogprobs(
        tokens=[_spelling(token.token_id, tokenizer) for token in tokens],
        token_logprobs=[None if token.logprobs is None else _finite(token.logprobs.logprob) for token in tokens],
        top_logprobs=[
            None if token.logprobs is None else _top_by_spelling(token.token_id, token.logprobs, tokenizer)
            for token in tokens
        ],
        text_offset=[token.text_offset for token in tokens],
    )


def _chat_token(token: ScoredToken, tokenizer: Tokenizer) -> ChatTokenLogprob:
    logprobs = token.logprobs
    return ChatTokenLogprob(
        **_chat_entry(token.token_id, logprobs.logprob, tokenizer).model_dump(),
        top_logprobs=[
            _chat_entry(token_id, logprob, tokenizer)
            for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        ],
    )


def _chat_entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    spelled = tokenizer.token_bytes(token_id)
    return TopLogprob(token=spelled.decode("utf-8", "replace"), logprob=_finite(logprob), bytes=list(spelled))


def _top_by_spelling(token_id: int, logprobs: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest tokens and the text's own one, which evaluation tools compare with the likeliest by
    equality: both are the same number."""
    top: dict[str, float] = {}
    for top_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        # Of tokens that look the same, the likeliest counts.
        top.setdefault(_spelling(top_id, tokenizer), _finite(logprob))
    top.setdefault(_spelling(token_id, tokenizer), _finite(logprobs.logprob))
    return top


def _spelling(token_id: int, tokenizer: Tokenizer) -> str:
    """The token's text; like OpenAI's, part of a character is spelled by its bytes, so that no two
    tokens look the same."""
    spelled = tokenizer.token_bytes(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
