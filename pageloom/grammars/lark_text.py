"""Texts and regular expressions as llguidance's dialect of Lark writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping


def lark_string(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_literals(text: str, special_tokens: Mapping[str, int]) -> str:
    """A text as literals, and the special tokens in it, given with their ids, as tokens; nothing for the empty text."""
    # A model may have thousands, a text seldom one.
    longest_first = sorted((token for token in special_tokens if token in text), key=len, reverse=True)
    if not longest_first:
        return lark_string(text) if text else ""
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return " ".join(
        f"<[{special_tokens[part]}]>" if part in special_tokens else lark_string(part) for part in parts if part
    )


def lark_regex(pattern: str) -> str:
    """A regular expression between slashes, without the anchors that a whole match makes idle."""
    pattern = pattern.removeprefix("^")
    num_backslashes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    if pattern.endswith("$") and num_backslashes % 2 == 0:
        pattern = pattern[:-1]
    return "/(?:" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL) + ")/"
