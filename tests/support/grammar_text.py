"""Which texts does a grammar allow? Over bytes instead of a model's tokens."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pageloom.grammar_limits import DEFAULT_GRAMMAR_LIMITS


@cache
def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def error_of(grammar: str) -> str:
    """Empty if the grammar compiles."""
    return matcher_of(grammar).get_error()


def matcher_of(grammar: str) -> LLMatcher:
    return LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LLParserLimits(**DEFAULT_GRAMMAR_LIMITS.of_parser))


def accepts(grammar: str, text: str) -> bool:
    """Whether the text is complete, from start to end."""
    matcher = matcher_of(grammar)
    assert not matcher.is_error(), matcher.get_error()
    encoded = text.encode()
    return matcher.try_consume_tokens(list(encoded)) == len(encoded) and bool(matcher.is_accepting())
