"""Text that grows: no half characters, stop strings over any border, the same however it is cut."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageloom.detokenizer import Detokenizer, StopMatcher, StopStrings
from pageloom.model_files import locate_model
from pageloom.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(locate_model(""))
HARD_TEXTS = [
    "plain",
    "😀👨‍👩‍👧‍👦🇫🇷🇩🇪👍🏽",
    "漢字かな交じり文 한국어",
    "e\u0301\u0323 a\u0308 combining",
    "\ufffd real replacement \ufffd",
    "العربية עברית \u200f",
]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_characters_come_whole(text: str):
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    pieces = [detokenizer.push(token_id) for token_id in TOKENIZER.encode(text, add_special_tokens=False)]
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@settings(max_examples=500)
@given(st.lists(st.integers(0, 49151), max_size=40), st.booleans())
def test_any_tokens_equal_decoding_at_once(token_ids: list[int], skip: bool):
    """Random tokens make invalid UTF-8 of every kind."""
    assert grown(token_ids, skip) == TOKENIZER.decode(token_ids, skip_special_tokens=skip)


def test_an_unfinished_tail_is_one_replacement():
    token_ids = TOKENIZER.encode("ok 😀", add_special_tokens=False)
    assert len(TOKENIZER.token_bytes(token_ids[-1])) < 4, "the last token is part of the character"
    detokenizer = Detokenizer(TOKENIZER.token_bytes)
    shown = "".join(map(detokenizer.push, token_ids[:-1]))
    assert (shown, detokenizer.finish()) == ("ok ", "\ufffd")


def test_a_prompt_that_ends_in_half_a_character_is_continued():
    token_ids = TOKENIZER.encode("hi 😀!", add_special_tokens=False)
    cut = next(i for i, token_id in enumerate(token_ids) if 0xF0 in TOKENIZER.token_bytes(token_id)) + 1
    detokenizer = Detokenizer(TOKENIZER.token_bytes, prompt_token_ids=token_ids[:cut])
    assert "".join(map(detokenizer.push, token_ids[cut:])) + detokenizer.finish() == "😀!"


def test_special_tokens_are_skipped_or_shown():
    token_ids = TOKENIZER.encode("a<|im_end|>b", add_special_tokens=False)
    assert grown(token_ids, skip=True) == "ab"
    assert grown(token_ids, skip=False) == "a<|im_end|>b"


@pytest.mark.parametrize(
    ("stops", "text", "shown", "matched"),
    [
        (["END"], "go END more", "go ", "END"),
        (["END"], "go EN", "go EN", None),
        (["aab"], "aaaab", "aa", "aab"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabc", "x", "abc"),
        (["ab", "abc"], "abc", "", "ab"),
        (["\n\n", "Human:"], "yes\nHuman: no", "yes\n", "Human:"),
        (["😀"], "a😀b", "a", "😀"),
        (["x"], "", "", None),
        ([], "anything", "anything", None),
    ],
)
def test_stop_strings(stops: list[str], text: str, shown: str, matched: str | None):
    for size in (1, 2, 3, len(text) or 1):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert matched_text(stops, pieces, include=False) == (shown, matched)
        assert matched_text(stops, pieces, include=True) == (shown + (matched or ""), matched)


def test_held_back_only_while_a_match_is_possible():
    matcher = StopMatcher(StopStrings(["<stop>"]), include_match=False)
    assert [matcher.push(piece) for piece in ("a<", "st", "ay", "<st", "op", "x>")] == [
        "a",
        "",
        "<stay",
        "",
        "",
        "<stopx>",
    ]


@settings(max_examples=1000)
@given(
    st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("ab ", max_size=6), max_size=8),
)
def test_the_cut_does_not_matter(stops: list[str], pieces: list[str]):
    text = "".join(pieces)
    ends = sorted((text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text)
    expected = (text[: ends[0][0] + ends[0][1]], ends[0][2]) if ends else (text, None)
    assert matched_text(stops, pieces, include=False) == expected
    assert matched_text(stops, list(text), include=False) == expected


def test_cost_is_linear():
    def cost_s(num_chars: int) -> float:
        stops = StopStrings(["a" * k + "b" for k in range(1, 17)])
        matcher = StopMatcher(stops, include_match=False)
        start = time.perf_counter()
        for _ in range(num_chars):
            matcher.push("a")
        return time.perf_counter() - start

    once, eight_times = min(cost_s(5_000) for _ in range(3)), min(cost_s(40_000) for _ in range(3))
    assert eight_times < 24 * once


def grown(token_ids: Sequence[int], skip: bool) -> str:
    skipped = TOKENIZER.special_ids if skip else frozenset()
    detokenizer = Detokenizer(TOKENIZER.token_bytes, skipped_ids=skipped)
    return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()


def matched_text(stops: list[str], pieces: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(StopStrings(stops), include_match=include)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.matched is not None:
            return shown, matcher.matched
    return shown + matcher.finish(), None
