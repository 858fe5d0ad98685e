"""Scored tokens -> the log-probability shapes of the two APIs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.choice import ScoredToken
from gateway.openai.answer_schemas import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from gateway.openai.prompt_logprobs import LOWEST_LOGPROB, EchoedToken
from pageloom.outputs import TokenLogprobs
from pageloom.tokenizer import Tokenizer


def chat_logprobs(scored: Sequence[ScoredToken], tokenizer: Tokenizer, *, as_ids: bool = False) -> ChatLogprobs:
    """`as_ids` names tokens "token_id:17" instead of by their text; their bytes stay."""
    return ChatLogprobs(content=[_chat_token(token, tokenizer, as_ids) for token in scored])


def completion_logprobs(
    scored: Sequence[ScoredToken], tokenizer: Tokenizer, echoed: Sequence[EchoedToken] = (), *, as_ids: bool = False
) -> CompletionLogprobs:
    """`as_ids` names tokens "token_id:17" instead of by their text."""
    tokens: list[EchoedToken | ScoredToken] = [*echoed, *scored]
    return CompletionLogprobs(
        tokens=[_spelling(token.token_id, tokenizer, as_ids) for token in tokens],
        token_logprobs=[None if token.logprobs is None else _finite(token.logprobs.logprob) for token in tokens],
        top_logprobs=[
            None if token.logprobs is None else _top_by_spelling(token.token_id, token.logprobs, tokenizer, as_ids)
            for token in tokens
        ],
        text_offset=[token.text_offset for token in tokens],
    )


def _chat_token(token: ScoredToken, tokenizer: Tokenizer, as_ids: bool) -> ChatTokenLogprob:
    logprobs = token.logprobs
    return ChatTokenLogprob(
        **_chat_entry(token.token_id, logprobs.logprob, tokenizer, as_ids).model_dump(),
        top_logprobs=[
            _chat_entry(token_id, logprob, tokenizer, as_ids)
            for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        ],
    )


def _chat_entry(token_id: int, logprob: float, tokenizer: Tokenizer, as_ids: bool) -> TopLogprob:
    spelled = tokenizer.token_bytes(token_id)
    name = _id_name(token_id) if as_ids else spelled.decode("utf-8", "replace")
    return TopLogprob(token=name, logprob=_finite(logprob), bytes=list(spelled))


def _top_by_spelling(token_id: int, logprobs: TokenLogprobs, tokenizer: Tokenizer, as_ids: bool) -> dict[str, float]:
    """The likeliest tokens and the text's own one, which evaluation tools compare with the likeliest by
    equality: both are the same number."""
    top: dict[str, float] = {}
    for top_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
        # Of tokens that look the same, the likeliest counts.
        top.setdefault(_spelling(top_id, tokenizer, as_ids), _finite(logprob))
    top.setdefault(_spelling(token_id, tokenizer, as_ids), _finite(logprobs.logprob))
    return top


def _spelling(token_id: int, tokenizer: Tokenizer, as_ids: bool) -> str:
    """The token's text; like OpenAI's, part of a character is spelled by its bytes, so that no two
    tokens look the same."""
    if as_ids:
        return _id_name(token_id)
    spelled = tokenizer.token_bytes(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
