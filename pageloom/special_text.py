"""Texts of special tokens in what a client sent: they are marked before a template puts them into a prompt, and the
prompt is cut at the marks before it is tokenized, so that they stay text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# A noncharacter, which Unicode keeps for uses inside of programs.
MARK = "\ufdd0"


class SpecialText:
    """Knows the texts of one vocabulary's special tokens. All methods are linear in their input."""

    def __init__(self, tokens: Iterable[str]) -> None:
        known = list(tokens)
        self._pattern = re.compile(_trie_pattern(known)) if known else None
        self._beginnings = frozenset(token[:length] for token in known for length in range(1, len(token)))
        self._longest_len = max(map(len, known), default=0)

    def marked(self, text: str) -> str:
        """With a mark before the text of each special token. A mark that comes with it is replaced."""
        text = text.replace(MARK, "\ufffd")
        return text if self._pattern is None else self._pattern.sub(_mark, text)

    def marked_parts(self, texts: list[str]) -> list[str]:
        """Of a message; a template may join them, so half a token's text at the end of one is marked, too."""
        return [
            self.marked(text) + (MARK if index < len(texts) - 1 and self._ends_within(text) else "")
            for index, text in enumerate(texts)
        ]

    def marked_json(self, value: Any) -> Any:
        """JSON with all its strings marked."""
        if isinstance(value, str):
            return self.marked(value)
        if isinstance(value, list):
            return [self.marked_json(item) for item in value]
        if isinstance(value, dict):
            return {self.marked(key): self.marked_json(item) for key, item in value.items()}
        return value

    def cut(self, prompt: str) -> list[str]:
        """The pieces of a prompt to tokenize each for itself: cut at each mark and, if a token's text follows, behind
        the first character of that."""
        first, *marked = prompt.split(MARK)
        cut = [first]
        for piece in marked:
            match = None if self._pattern is None else self._pattern.match(piece)
            cut += [piece] if match is None else self._parts(piece, match.end())
        return cut

    def _parts(self, piece: str, end: int) -> list[str]:
        """A piece, cut behind the first character of each token that begins before `end`: there may be others in the
        first one, and across its end."""
        assert self._pattern is not None
        parts, start = [], 0
        while (match := self._pattern.search(piece, start)) is not None and match.start() < end:
            parts.append(piece[start : match.start() + 1])
            start = match.start() + 1
        return [*parts, piece[start:]]

    def _ends_within(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in range(1, min(self._longest_len, len(text) + 1)))


def _mark(match: re.Match[str]) -> str:
    return MARK + match[0]


def _trie_pattern(tokens: list[str]) -> str:
    """The longest of the tokens. Thousands of alternatives in a row would each be tried at each place."""
    trie: dict[str, Any] = {}
    for token in tokens:
        node = trie
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return _node_pattern(trie)


def _node_pattern(node: dict[str, Any]) -> str:
    # Without recursion along a branch that does not fork: tokens may be long.
    literal = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        literal += re.escape(character)
    following = [re.escape(character) + _node_pattern(child) for character, child in node.items() if character]
    if not following:
        return literal
    return f"{literal}(?:{'|'.join(following)}){'?' if '' in node else ''}"
