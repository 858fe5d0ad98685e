"""Texts of special tokens stay text: marks and cuts, for any vocabulary, in linear time."""

import random
import re
import time

import pytest

from pageloom.special_text import MARK, SpecialText

TOKENS = ["<s>", "</s>", "<|im_end|>", "<|im_start|>", "<|im_start|>x", "[INST]", "<a", "a+*?(.", "\n\n", "é"]


def test_the_longest_token_is_marked():
    special = SpecialText(TOKENS)
    assert special.marked("a<|im_start|>xb<s>") == f"a{MARK}<|im_start|>xb{MARK}<s>"
    assert special.marked("plain < s >") == "plain < s >"
    assert special.marked(f"a{MARK}b") == "a\ufffdb"
    assert special.marked_json({"k<s>": ["<s>", 1, None, True]}) == {f"k{MARK}<s>": [f"{MARK}<s>", 1, None, True]}
    assert special.marked_parts(["<|im_", "end|>"]) == [f"<|im_{MARK}", "end|>"]
    assert special.marked_parts(["b", "<"]) == ["b", "<"]
    assert SpecialText([]).marked("<s>") == "<s>"


def test_no_piece_of_a_cut_prompt_has_a_marked_token():
    special, rng = SpecialText(TOKENS), random.Random(1)
    letters = [*TOKENS, "<", "|", "im_", "x", " ", "s>", "/"]
    whole = re.compile("|".join(map(re.escape, TOKENS)))
    for _ in range(2000):
        text = "".join(rng.choices(letters, k=rng.randrange(12)))
        marked = special.marked(text)
        pieces = special.cut(marked)
        assert "".join(pieces) == text
        # A token of one character cannot be cut.
        assert not any(len(found[0]) > 1 for piece in pieces for found in whole.finditer(piece)), text


def test_marks_that_a_template_has_separated_from_their_text_only_cut():
    assert SpecialText(TOKENS).cut(f"a{MARK}b{MARK}<s>c") == ["a", "b", "<", "s>c"]


@pytest.mark.parametrize("unit", ["<", "<|im_star", "<s>", "a", "<|im_start|>"])
def test_time_is_linear_with_thousands_of_tokens(unit: str):
    special = SpecialText([f"<SPECIAL_{index}>" for index in range(2000)] + TOKENS)

    def seconds(repeats: int) -> float:
        start = time.process_time()
        special.cut(special.marked(unit * repeats))
        return time.process_time() - start

    seconds(10)
    # Quadratic would be 256 times as long.
    assert min(seconds(40_000) for _ in range(3)) < 64 * min(seconds(2_500) for _ in range(3)) + 0.01
