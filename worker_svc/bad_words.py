"""Which tokens would complete a sequence that may not come up?"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence


class BadWords:
    """Token sequences of at least two tokens, and the end of one output, token by token."""

    def __init__(self, bad_words: Sequence[Sequence[int]], output_token_ids: Sequence[int]) -> None:
        self._last_token_ids: dict[tuple[int, ...], set[int]] = {}
        for *first_token_ids, last_token_id in bad_words:
            self._last_token_ids.setdefault(tuple(first_token_ids), set()).add(last_token_id)
        self._lengths = sorted(set(map(len, self._last_token_ids)))
        self._tail = deque(output_token_ids, maxlen=self._lengths[-1])

    def copy(self) -> BadWords:
        """For an output that may go on otherwise."""
        other = copy.copy(self)
        other._tail = self._tail.copy()
        return other

    def take(self, token_id: int) -> None:
        """The output's next token."""
        self._tail.append(token_id)

    def completing(self) -> Iterator[int]:
        """The tokens that may not come next; some may come up more than once. As vLLM, a sequence that began in the
        prompt does not count."""
        tail = tuple(self._tail)
        for length in self._lengths:
            if length <= len(tail):
                yield from self._last_token_ids.get(tail[len(tail) - length :], ())
