"""Outputs that are remembered, and those that are not any more."""

import random

from worker_svc.drafting.suffix_memory import MemoryCursor, SuffixMemory


def write(memory: SuffixMemory, token_ids: list[int]) -> None:
    cursor = MemoryCursor()
    for token_id in token_ids:
        memory.write(cursor, token_id)


def found(memory: SuffixMemory, token_ids: list[int]) -> list[int]:
    """What is known to follow, of the best continuation."""
    cursor = MemoryCursor()
    for token_id in token_ids:
        memory.read(cursor, token_id)
    best = max(memory.continuations(cursor, 2, 4, 0.1), key=lambda found: found.expected, default=None)
    return [] if best is None else list(best.token_ids)


def test_what_followed_in_another_output():
    memory = SuffixMemory(1 << 20)
    write(memory, [1, 2, 3, 4, 5, 6, 7])
    assert found(memory, [9, 9, 3, 4]) == [5, 6]  # no more than the match is long
    assert found(memory, [9, 2, 3, 4]) == [5, 6, 7]
    assert found(memory, [9, 9, 9, 4]) == []  # one token is no match
    write(memory, [3, 4, 8])
    write(memory, [3, 4, 8])
    assert found(memory, [0, 3, 4]) == [8]


def test_an_output_finds_itself_only_where_it_repeats():
    memory, cursor = SuffixMemory(1 << 20), MemoryCursor()
    for token_id in [1, 2, 3, 4]:
        memory.write(cursor, token_id)
    assert memory.continuations(cursor, 1, 4, 0.1) == []
    for token_id in [1, 2, 3]:
        memory.write(cursor, token_id)
    assert [found.token_ids for found in memory.continuations(cursor, 1, 4, 0.1)] == [(4, 1, 2)]


def test_two_outputs_grow_side_by_side():
    memory, cursors = SuffixMemory(1 << 20), (MemoryCursor(), MemoryCursor())
    texts = [1, 2, 3, 4, 5], [7, 2, 3, 8, 9]
    for tokens in zip(*texts, strict=True):
        for cursor, token_id in zip(cursors, tokens, strict=True):
            memory.write(cursor, token_id)
    assert found(memory, [1, 2, 3]) == [4, 5]
    assert found(memory, [7, 2, 3]) == [8, 9]


def test_the_oldest_are_forgotten():
    memory = SuffixMemory(200_000)
    rng = random.Random(3)
    old, live = list(range(1000, 1020)), MemoryCursor()
    write(memory, old)
    assert found(memory, old[:6]) == old[6:10]
    most, num_seen = 0, 0
    for _ in range(3000):
        memory.write(live, rng.randrange(500))
        most = max(most, memory.num_bytes)
        num_seen += bool(found(memory, old[:6]))
    assert most < 202_000
    assert 0 < num_seen < 3000
    assert found(memory, old[:6]) == []
    recent = list(range(2000, 2020))
    write(memory, recent)
    assert found(memory, recent[:6]) == recent[6:10]
    # An output that was being written when others were forgotten goes on.
    for token_id in (3001, 3002, 3003):
        memory.write(live, token_id)
    assert found(memory, [3001, 3002]) == [3003]
