"""The counter-based random numbers: known answers, keys that matter, and a flat distribution."""

import numpy as np
import pytest

from worker_svc.counter_random import Words, philox4x32, uniforms


def word(value: int) -> Words:
    return np.array([value], np.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # kat_vectors of Random123, the authors' own implementation.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    c0, c1, c2, c3 = map(word, counter)
    k0, k1 = map(word, key)
    assert tuple(int(drawn[0]) for drawn in philox4x32((c0, c1, c2, c3), (k0, k1))) == expected


def numbers(seed: int, choice_index: int, positions: np.ndarray) -> np.ndarray:
    return uniforms(
        np.full(len(positions), seed, np.uint64), np.full(len(positions), choice_index), positions.astype(np.int64)
    )


def test_rows_do_not_depend_on_each_other():
    positions = np.arange(50)
    together = numbers(2**64 - 1, 3, positions)
    alone = [numbers(2**64 - 1, 3, positions[i : i + 1])[0] for i in positions]
    assert together.tolist() == alone


def test_every_part_of_the_key_matters():
    at = np.array([7])
    keys = [(0, 0, 7), (1, 0, 7), (2**32, 0, 7), (0, 1, 7), (0, 0, 8)]
    drawn = {float(numbers(seed, choice, np.array([position]))[0]) for seed, choice, position in keys}
    assert len(drawn) == len(keys)
    assert numbers(5, 1, at) == numbers(5, 1, at)


def test_numbers_are_uniform():
    drawn = numbers(42, 0, np.arange(100_000))
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    chi_squared = ((counts - 1000.0) ** 2 / 1000.0).sum()
    # 99 degrees of freedom: the probability of being outside is below 1e-4 on either side.
    assert 55 < chi_squared < 160
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.015
