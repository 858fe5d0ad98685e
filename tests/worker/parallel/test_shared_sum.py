"""Sums in shared memory: right, the same to the bit at all ranks, and an error where a rank is gone."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from worker_svc.parallel.shared_sum import MAX_PART_BYTES, SharedSum


def make_ends(num_ranks: int) -> tuple[list[SharedSum], dict[tuple[int, int], socket.socket]]:
    """The ends of so many ranks, which threads of one process can be, and their sockets by (rank, peer)."""
    sockets: dict[tuple[int, int], socket.socket] = {}
    for rank in range(num_ranks):
        for peer in range(rank):
            sockets[rank, peer], sockets[peer, rank] = socket.socketpair()
    memory = torch.zeros(2, num_ranks, MAX_PART_BYTES, dtype=torch.uint8)
    ends = [
        SharedSum(memory, rank, [sockets[rank, peer] for peer in range(num_ranks) if peer != rank])
        for rank in range(num_ranks)
    ]
    return ends, sockets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_many_sums_one_after_the_other(num_ranks: int, dtype: torch.dtype):
    ends, sockets = make_ends(num_ranks)
    generator = torch.Generator().manual_seed(5)
    sizes = [1, 7, 576, 3 * 4096, MAX_PART_BYTES // dtype.itemsize] * 20
    parts = [[torch.randn(size, generator=generator).to(dtype) for _ in range(num_ranks)] for size in sizes]
    expected = []
    for of_ranks in parts:
        total = of_ranks[0] + of_ranks[1]
        for part in of_ranks[2:]:
            total = total + part
        expected.append(total)

    def run(rank: int) -> list[torch.Tensor]:
        sums = [of_ranks[rank].clone() for of_ranks in parts]
        for part in sums:
            ends[rank].sum(part)
        return sums

    with ThreadPoolExecutor(num_ranks) as threads:
        for sums in threads.map(run, range(num_ranks)):
            assert all(torch.equal(found, total) for found, total in zip(sums, expected, strict=True))
    for end in sockets.values():
        end.close()


def test_a_rank_that_is_gone():
    ends, sockets = make_ends(2)
    sockets[1, 0].close()
    with pytest.raises(ConnectionError):
        ends[0].sum(torch.ones(3))
    sockets[0, 1].close()
