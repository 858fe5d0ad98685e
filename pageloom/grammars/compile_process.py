"""`python -m pageloom.grammars.compile_process`: compiles grammars, one at a time, and says what is wrong with each. A
process of its own, because a compilation cannot be stopped otherwise; `compiler.py` is at the other end."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO

import orjson
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pageloom.grammars.pipe_frames import HEADER_BYTES, encode_frame, payload_len

MAX_MESSAGE_CHARS = 500
LONGEST_TOKEN_BYTES = 16
_STOP_REASONS = {
    "NoExtension": "no text satisfies it",
    "NoExtensionBias": "no text satisfies it",
    "ParserTooComplex": "it is too ambiguous",
    "LexerTooComplex": "its regular expressions are too complex",
}
_EXCERPT = re.compile(r"\d+ \|.*|\^+")


class Vocabulary:
    """What llguidance's TokenizerWrapper wraps."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = special_token_ids[0] if special_token_ids else len(tokens) - 1
        special = set(special_token_ids)
        self._ids = {token: token_id for token_id, token in enumerate(tokens) if token_id not in special}

    def __call__(self, text: bytes) -> list[int]:
        """Where a grammar leaves no choice, its text in some tokens, the longest first: which ones does not matter
        to whether there are any."""
        token_ids, start = [], 0
        while start < len(text):
            for end in range(min(start + LONGEST_TOKEN_BYTES, len(text)), start, -1):
                if (token_id := self._ids.get(text[start:end])) is not None:
                    token_ids.append(token_id)
                    break
            start = end
        return token_ids


def find_error(grammar: str, tokenizer: LLTokenizer, limits: LLParserLimits) -> str:
    """What is wrong with the grammar; empty if it compiles and a text can begin, or be empty."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        return _explained(matcher.get_error())
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        reason = matcher.get_error().split(maxsplit=1)[0]
        return _STOP_REASONS.get(reason, f"how a text can begin cannot be found ({reason})")
    return "" if any(mask) or matcher.is_accepting() else "no text satisfies it"


def _explained(message: str) -> str:
    """On one line, and without the lines of the grammar that follow, which may be ones of ours."""
    if message.startswith("panic:"):
        return "it is too large to be compiled"
    lines = (line.strip() for line in message.splitlines())
    return " ".join(line for line in lines if line and not _EXCERPT.fullmatch(line))[:MAX_MESSAGE_CHARS]


def main(source: BinaryIO, sink: BinaryIO) -> None:
    first = _read_frame(source)
    if first is None:
        return
    settings = orjson.loads(first)
    tokens = [spelling.encode("latin-1") for spelling in settings["tokens"]]
    tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary(tokens, settings["special_token_ids"])))
    limits = LLParserLimits(**settings["limits"])
    _limit_memory(settings["max_compile_bytes"])
    _be_quiet()
    sink.write(encode_frame(b""))
    sink.flush()
    while (grammar := _read_frame(source)) is not None:
        # The parent kills a compilation that takes too long; this is for one that outlives the parent.
        signal.setitimer(signal.ITIMER_REAL, 2 * settings["max_compile_s"])
        error = find_error(grammar.decode(), tokenizer, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sink.write(encode_frame(error.encode()))
        sink.flush()


def _limit_memory(max_compile_bytes: int) -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    most = used + max_compile_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _be_quiet() -> None:
    """What llguidance writes when a grammar is too much for it is nobody's news, and the parent no longer reads it."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stderr.fileno())
    os.close(silence)


def _read_frame(source: BinaryIO) -> bytes | None:
    header = source.read(HEADER_BYTES)
    return source.read(payload_len(header)) if len(header) == HEADER_BYTES else None


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
