"""What does suffix lookup cost? Microseconds of the processor and bytes for each token of some kinds of text.

python -m benchmarks.suffix_lookup
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from pageloom.model_files import locate_model
from pageloom.tokenizer import load_tokenizer
from worker_svc.drafting.suffix_automaton import ROOT, SuffixAutomaton
from worker_svc.drafting.suffix_memory import MemoryCursor, SuffixMemory

_NUM_TOKENS = 20_000
_NUM_GUESSED = 7
_VOCAB_SIZE = 49_152


def main() -> None:
    print(f"{'text':24}{'append':>10}{'and guess':>12}{'and remember':>14}{'bytes':>8}")
    for name, token_ids in _texts().items():
        append_us = _microseconds(_append, token_ids)
        guess_us = _microseconds(_guess_along, token_ids)
        remember_us = _microseconds(_remember, token_ids)
        num_bytes = _append(token_ids).num_bytes / len(token_ids)
        print(f"{name:24}{append_us:>10.1f}{guess_us:>12.1f}{guess_us + remember_us:>14.1f}{num_bytes:>8.0f}")


def _texts() -> dict[str, list[int]]:
    rng = random.Random(1)
    documents = "\n".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    token_ids = load_tokenizer(locate_model("")).encode(documents, add_special_tokens=False)
    return {
        "documentation": token_ids[:_NUM_TOKENS],
        "random tokens": [rng.randrange(_VOCAB_SIZE) for _ in range(_NUM_TOKENS)],
        "50 tokens, repeated": list(range(50)) * (_NUM_TOKENS // 50),
        "one token, repeated": [7] * _NUM_TOKENS,
    }


def _append(token_ids: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(ROOT, token_ids)
    return automaton


def _guess_along(token_ids: list[int]) -> None:
    automaton, last = SuffixAutomaton(), ROOT
    for token_id in token_ids:
        last = automaton.append(last, token_id)
        automaton.continuation(automaton.longest_suffix(last), _NUM_GUESSED, 0.1)


def _remember(token_ids: list[int]) -> None:
    memory, cursor = SuffixMemory(1 << 30), MemoryCursor()
    for token_id in token_ids:
        memory.write(cursor, token_id)


def _microseconds(work: Callable[[list[int]], object], token_ids: list[int]) -> float:
    """Of the processor, for each token: the least of three times."""
    times = []
    for _ in range(3):
        started_s = time.process_time()
        work(token_ids)
        times.append(time.process_time() - started_s)
    return min(times) / len(token_ids) * 1e6


if __name__ == "__main__":
    main()
