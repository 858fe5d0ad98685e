"""The automaton against a search through all positions, on texts of few different tokens."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from worker_svc.drafting.suffix_automaton import ROOT, Match, SuffixAutomaton

texts = st.integers(2, 5).flatmap(lambda size: st.lists(st.integers(0, size - 1), max_size=60))


def occurrences(texts: list[list[int]], string: list[int]) -> list[tuple[list[int], int]]:
    """Text and index after each place where the string is."""
    length = len(string)
    return [(text, end) for text in texts for end in range(length, len(text) + 1) if text[end - length : end] == string]


def followers(texts: list[list[int]], string: list[int]) -> Counter[int]:
    return Counter(text[end] for text, end in occurrences(texts, string) if end < len(text))


def check_continuation(automaton: SuffixAutomaton, match: Match, texts: list[list[int]], string: list[int]) -> None:
    """Each token is one of those that followed most often what was there so far, in as much as a state tells."""
    continuation = automaton.continuation(match, 8, 0.0)
    probability, expected = 1.0, 0.0
    so_far = list(string)
    for token_id in continuation.token_ids:
        counts = followers(texts, so_far)
        while not counts:  # nothing ever followed the whole of it
            so_far = so_far[1:]
            counts = followers(texts, so_far)
        assert counts[token_id] == max(counts.values())
        probability *= counts[token_id] / counts.total()
        expected += probability
        so_far.append(token_id)
    assert abs(continuation.expected - expected) < 1e-9
    if len(continuation.token_ids) < 8:
        assert not any(followers(texts, so_far[start:]) for start in range(len(so_far)))


@given(texts)
def test_longest_earlier_suffix_and_what_followed_it(text):
    automaton, last = SuffixAutomaton(), ROOT
    for end, token_id in enumerate(text, 1):
        last = automaton.append(last, token_id)
        so_far = text[:end]
        longest = max(length for length in range(end) if len(occurrences([so_far], so_far[end - length :])) > 1)
        match = automaton.longest_suffix(last)
        assert match.length == longest
        if longest:
            check_continuation(automaton, match, [so_far], so_far[end - longest :])


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_a_text_is_matched_against_others_that_grow(others, text):
    """All grow in turns, by one token each."""
    automaton, match, lasts = SuffixAutomaton(), Match(), [ROOT] * len(others)
    for turn, token_id in enumerate(text):
        for i, other in enumerate(others):
            if turn < len(other):
                lasts[i] = automaton.append(lasts[i], other[turn])
        automaton.advance(match, token_id)
        grown = [other[: turn + 1] for other in others]
        so_far = text[: turn + 1]
        found = [length for length in range(turn + 2) if occurrences(grown, so_far[turn + 1 - length :])]
        assert match.length <= max(found)
        matched = so_far[turn + 1 - match.length :]
        assert occurrences(grown, matched)
        if match.length:
            check_continuation(automaton, match, grown, matched)


@given(texts, texts)
def test_the_match_in_a_finished_text_is_the_longest(other, text):
    automaton, match = SuffixAutomaton(), Match()
    automaton.extend(ROOT, other)
    for end, token_id in enumerate(text, 1):
        automaton.advance(match, token_id)
        assert match.length == max(
            length for length in range(end + 1) if not length or occurrences([other], text[end - length : end])
        )


def test_unlikely_continuations_end():
    automaton = SuffixAutomaton()
    last = automaton.extend(ROOT, [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2])
    continuation = automaton.continuation(automaton.longest_suffix(last), 8, 0.3)
    # 1 2 3 1 2 was followed by 4 once. Then 1 2 follow, and no more than this is known.
    assert continuation.token_ids[:3] == (4, 1, 2)
    match = Match()
    automaton.advance(match, 2)
    assert automaton.continuation(match, 8, 0.6).token_ids[:1] == (3,)
    assert automaton.continuation(match, 8, 0.7).token_ids == ()


def test_a_token_that_repeats_takes_bounded_time():
    automaton, last = SuffixAutomaton(), ROOT
    for _ in range(5000):
        last = automaton.append(last, 7)
    assert automaton.longest_suffix(last).length == 4999
    assert automaton.continuation(automaton.longest_suffix(last), 4, 0.5).token_ids == (7, 7, 7, 7)
