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
    """A regular expression between slashes, without the anchors that a whole match makes idle. Errors quote what stands
    there, so nothing is put around it unless it would leave the slashes side by side or escape the second one."""
    bare = without_anchors(pattern)
    if not bare or _ends_in_escape(bare):
        bare = f"(?:{bare})"
    return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", bare, flags=re.DOTALL) + "/"


def without_anchors(pattern: str) -> str:
    """A regular expression without ^ at its start and $ at its end, where the whole text has to match."""
    pattern = pattern.removeprefix("^")
    return pattern[:-1] if pattern.endswith("$") and not _ends_in_escape(pattern[:-1]) else pattern


def _ends_in_escape(pattern: str) -> bool:
    """Whether what comes next would be escaped."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1
