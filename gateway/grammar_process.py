"""`python -m gateway.grammar_process`: compiles grammars, one at a time, and says what is wrong with each. A process
of its own, because a compilation cannot be stopped otherwise; `grammar_compiler.py` is the other end of its pipes."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO

import llguidance
import orjson

from gateway.pipe_frames import HEADER_BYTES, encode_frame, payload_len

# Above what the process has once the vocabulary is loaded.
MAX_COMPILE_BYTES = 1 << 30
MAX_MESSAGE_CHARS = 500
# The model's steps must not wait for a compilation.
NICENESS = 10


class Vocabulary:
    """What llguidance wants of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = special_token_ids[0] if special_token_ids else len(tokens) - 1

    def __call__(self, text: bytes) -> list[int]:
        # Only fast-forwarded tokens would need more, and nothing asks for any.
        return []


def find_error(grammar: str, tokenizer: llguidance.LLTokenizer) -> str:
    """What is wrong with the grammar, empty if nothing: it compiles, and at least one token may come first or
    nothing at all may come."""
    limits = llguidance.LLParserLimits(verbose_errors=False)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        return matcher.get_error()[:MAX_MESSAGE_CHARS] or "it cannot be compiled"
    return "" if any(mask) or matcher.is_accepting() else "no text satisfies it"


def main(source: BinaryIO, sink: BinaryIO, max_compile_s: int) -> None:
    os.nice(NICENESS)
    first = _read_frame(source)
    if first is None:
        return
    vocabulary = orjson.loads(first)
    tokens = [spelling.encode("latin-1") for spelling in vocabulary["tokens"]]
    wrapper = llguidance.TokenizerWrapper(Vocabulary(tokens, vocabulary["special_token_ids"]))
    tokenizer = llguidance.LLTokenizer(wrapper)
    _limit_memory()
    sink.write(encode_frame(b""))
    sink.flush()
    while (grammar := _read_frame(source)) is not None:
        # The parent kills a compilation that takes too long; this is for one that outlives the parent.
        signal.alarm(2 * max_compile_s)
        error = find_error(grammar.decode(), tokenizer)
        signal.alarm(0)
        sink.write(encode_frame(error.encode()))
        sink.flush()


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_COMPILE_BYTES, used + MAX_COMPILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_frame(source: BinaryIO) -> bytes | None:
    header = source.read(HEADER_BYTES)
    return source.read(payload_len(header)) if len(header) == HEADER_BYTES else None


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
