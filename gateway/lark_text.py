"""Texts and regular expressions as llguidance's dialect of Lark writes them."""

from __future__ import annotations

import json
import re


def lark_string(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_regex(pattern: str) -> str:
    """A regular expression between slashes, without the anchors that a whole match makes idle."""
    pattern = pattern.removeprefix("^")
    num_backslashes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    if pattern.endswith("$") and num_backslashes % 2 == 0:
        pattern = pattern[:-1]
    return "/(?:" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL) + ")/"
