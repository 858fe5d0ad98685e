"""The allocators of contiguous memory, against a map of every token."""

import random

import pytest

from scheduler_svc.simulation.address_space import AddressSpace, Buddy, FirstFit, Region


@pytest.mark.parametrize("kind", [FirstFit, Buddy])
@pytest.mark.parametrize("seed", range(5))
def test_regions_never_overlap_and_everything_comes_back(kind: type[FirstFit] | type[Buddy], seed: int):
    num_tokens = 1000
    space: AddressSpace = kind(num_tokens)
    generator = random.Random(seed)
    held: list[Region] = []
    taken: set[int] = set()
    for _ in range(500):
        if held and generator.random() < 0.45:
            region = held.pop(generator.randrange(len(held)))
            space.free(region)
            taken -= set(range(region.start, region.start + region.length))
            continue
        length = generator.randint(1, 200)
        got = space.allocate(length)
        if got is None:
            continue
        tokens = set(range(got.start, got.start + got.length))
        assert got.length >= length
        assert tokens <= set(range(num_tokens))
        assert not tokens & taken
        taken |= tokens
        held.append(got)
        assert space.num_free == num_tokens - len(taken)
    for region in held:
        space.free(region)
    assert space.allocate(space.longest) is not None


def test_first_fit_refuses_only_what_no_hole_holds():
    space = FirstFit(100)
    first, second, third = (space.allocate(length) for length in (40, 20, 40))
    assert first == (0, 40)
    assert third == (60, 40)
    assert first is not None
    assert second is not None
    space.free(first)
    assert space.allocate(41) is None
    space.free(second)
    assert space.allocate(41) == (0, 41)


def test_buddy_rounds_up_and_splits_in_halves():
    space = Buddy(64 + 16)
    assert space.longest == 64
    assert space.allocate(9) == (64, 16)
    assert space.allocate(9) == (0, 16)
    assert space.allocate(33) is None
    assert space.allocate(32) == (32, 32)
    assert space.num_free == 16
