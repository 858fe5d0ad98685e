"""Attention of the CPU kernels, beside its PyTorch twin; and that a row's bits depend on nothing but its context."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import pytest
import torch
from torch import Tensor

from pageloom_kernels.cpu import structs
from pageloom_kernels.cpu.engine import attention_batch
from pageloom_kernels.cpu.library import CpuLibrary, load_cpu_library
from pageloom_kernels.cpu.thread_pool import ThreadPool
from pageloom_kernels.paged_attention.batch import AttentionBatch
from pageloom_kernels.paged_attention.reference import paged_attention
from tests.kernels.cpu.kv_blocks import to_library
from tests.kernels.cpu.libraries import INSTRUCTION_SETS, load
from tests.kernels.steps import Step, make_step

# Lengths at and beside the ends of pages (32 tokens) and spans (64), decodes first; the last query is a chunk of a
# longer prompt.
SEQUENCES = ((1, 1), (1, 31), (1, 64), (1, 65), (1, 0), (1, 333), (3, 66), (9, 9), (33, 64), (40, 40), (100, 257))

instruction_sets = pytest.mark.parametrize("library", INSTRUCTION_SETS, indirect=True)


@pytest.fixture(scope="module", autouse=True)
def torch_has_one_thread():
    """Or its threads and the library's take the cores from each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    return load(request.param)


@cache
def pool(library: CpuLibrary, num_threads: int) -> ThreadPool:
    return ThreadPool(library, num_threads)


# The key is the tensor, not what it holds.
in_library_order = lru_cache(maxsize=4)(to_library)


def attend(library: CpuLibrary, step: Step, *, num_threads: int = 2) -> Tensor:
    tokens, num_heads, head_dim = step.query.shape
    _, _, num_kv_heads, block_size, _ = step.kv_cache.shape
    shape = structs.AttentionShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=step.scale)
    kv_cache = in_library_order(step.kv_cache)
    output = torch.full((tokens, num_heads + 1, head_dim), torch.nan, dtype=torch.bfloat16)
    assert library.functions.pageloom_attention(
        pool(library, num_threads).handle,
        ctypes.byref(shape),
        ctypes.byref(attention_batch(step.batch, block_size)),
        step.query.data_ptr(),
        step.query.stride(0),
        kv_cache.data_ptr(),
        output.data_ptr(),
        output.stride(0),
    )
    assert output[:, num_heads:].isnan().all()
    return output[:, :num_heads]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """A step, and what the twin gives for it from the same bf16 inputs in fp32."""

    step: Step
    output: Tensor
    magnitude: Tensor  # the output, if all values were positive


@cache
def expected(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, query_scale: int = 1) -> Expected:
    step = make_step(
        SEQUENCES, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size,
        dtype=torch.bfloat16,
    )  # fmt: skip
    step = replace(step, query=step.query * query_scale)
    query, kv_cache = step.query.float(), step.kv_cache.float()
    output = paged_attention(query, kv_cache, step.batch, scale=step.scale)
    kv_cache[:, 1].abs_()
    return Expected(step=step, output=output, magnitude=paged_attention(query, kv_cache, step.batch, scale=step.scale))


@instruction_sets
@pytest.mark.parametrize(
    "shape",
    [
        (9, 3, 64, 32),
        (4, 4, 64, 128),
        (7, 1, 128, 64),
        (16, 1, 80, 32),
        (10, 2, 96, 128),
        (4, 2, 256, 64),
        (2, 1, 16, 32),
    ],
)
@pytest.mark.parametrize(("query_scale", "score_error"), [(1, 1e-5), (64, 2e-4)])
def test_outputs_are_those_of_the_twin(library, shape, query_scale, score_error):
    """But for half a unit in the last place of each output, and of each weight where those are multiplied as bf16."""
    twin = expected(*shape, query_scale)
    half_unit = 2**-8
    weight_error = score_error + (half_unit if library.instruction_set == "avx512_bf16" else 0)
    error = (attend(library, twin.step) - twin.output).abs()
    assert (error <= half_unit * twin.output.abs() + weight_error * twin.magnitude).all()


@instruction_sets
def test_a_sequence_without_context_gives_zeros(library):
    step = make_step(((1, 0), (1, 40), (1, 0)), head_dim=64, block_size=32, dtype=torch.bfloat16)
    output = attend(library, step)
    assert not output[[0, 2]].any()
    assert output[1].all()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Sequences, some with blocks in common, and what each of their tokens attends to if it is computed alone."""

    query: tuple[Tensor, ...]  # [len, num_heads, head_dim] of each sequence
    block_tables: Tensor
    kv_cache: Tensor  # NaN wherever no sequence has a token

    def step(self, runs: list[tuple[int, int, int]]) -> Step:
        """Sequences with the positions of their queries: (sequence, first, end)."""
        query = torch.cat([self.query[seq][first:end] for seq, first, end in runs])
        positions = torch.cat([torch.arange(first, end) for _, first, end in runs])
        query_lens = torch.tensor([0, *(end - first for _, first, end in runs)])
        batch = AttentionBatch(
            block_tables=self.block_tables[[seq for seq, _, _ in runs]],
            seq_lens=torch.tensor([end for _, _, end in runs], dtype=torch.int32),
            query_start=query_lens.cumsum(0).int(),
            num_decodes=0,
            max_query_len=int(query_lens.max()),
            max_seq_len=max(end for _, _, end in runs),
            positions=positions,
            slot_mapping=torch.full_like(positions, -1),
        )
        return Step(sequences=(), query=query, key=query, value=query, kv_cache=self.kv_cache, batch=batch, scale=0.125)


LENGTHS = (520, 391, 385, 300, 200, 130, 129, 64, 33, 1)
# How many blocks of 32 tokens each has in common with the one before it.
NUM_COMMON_BLOCKS = (0, 12, 12, 7, 6, 4, 4, 0, 1, 0)


@cache
def world(num_heads: int, num_kv_heads: int, head_dim: int = 64) -> World:
    generator = torch.Generator().manual_seed(0)
    num_columns = 1 + max(LENGTHS) // 32
    blocks = torch.randperm(len(LENGTHS) * num_columns, generator=generator).int()
    block_tables = blocks.view(len(LENGTHS), num_columns).clone()
    kv_cache = torch.full((len(blocks), 2, num_kv_heads, 32, head_dim), torch.nan, dtype=torch.bfloat16)
    for seq, (length, num_common) in enumerate(zip(LENGTHS, NUM_COMMON_BLOCKS, strict=True)):
        block_tables[seq, :num_common] = block_tables[seq - 1, :num_common]
        for column in range(num_common, -(-length // 32)):
            size = (2, num_kv_heads, min(32, length - 32 * column), head_dim)
            kv_cache[block_tables[seq, column], :, :, : size[2]] = torch.randn(size, generator=generator).bfloat16()
    query = tuple(torch.randn(n, num_heads, head_dim, generator=generator).bfloat16() for n in LENGTHS)
    return World(query=query, block_tables=block_tables, kv_cache=kv_cache)


@cache
def alone(library: CpuLibrary, num_heads: int, num_kv_heads: int) -> tuple[Tensor, ...]:
    """Every token's output, from one prefill of its sequence on one thread."""
    sequences = world(num_heads, num_kv_heads)
    return tuple(
        attend(library, sequences.step([(seq, 0, length)]), num_threads=1) for seq, length in enumerate(LENGTHS)
    )


def assert_as_alone(library: CpuLibrary, heads: tuple[int, int], runs: list[tuple[int, int, int]], threads: int):
    output = attend(library, world(*heads).step(runs), num_threads=threads)
    expected = torch.cat([alone(library, *heads)[seq][first:end] for seq, first, end in runs])
    assert expected.isfinite().all()
    assert torch.equal(output.view(torch.int16), expected.view(torch.int16)), (runs, threads)


@instruction_sets
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
def test_bits_are_the_same_in_any_company_chunks_and_number_of_threads(library, heads):
    chance = random.Random(0)
    for _ in range(25):
        runs = []
        for seq in chance.choices(range(len(LENGTHS)), k=chance.randint(1, 12)):
            end = chance.randint(1, LENGTHS[seq])
            most = chance.choice((1, 1, 8, 100, 520))
            runs.append((seq, max(0, end - chance.randint(1, most)), end))
        assert_as_alone(library, heads, runs, threads=chance.choice((1, 2, 3)))


@instruction_sets
def test_bits_of_decodes_that_share_blocks_are_those_of_each_alone(library):
    everyone = [(seq, length - 1, length) for seq, length in enumerate(LENGTHS)]
    several_tokens = [(seq, max(0, length - 5), length) for seq, length in enumerate(LENGTHS)]
    # More than one tile of rows, of different lengths.
    crowd = [(0, end - 1, end) for end in range(380, 520)]
    for threads in (1, 2, 5):
        for runs in (everyone, everyone[::-1], several_tokens, crowd, everyone * 4):
            assert_as_alone(library, (9, 3), runs, threads)


@instruction_sets
def test_a_long_sequence_has_the_same_bits_on_any_number_of_threads(library):
    for threads in (1, 2, 3, 9):
        for runs in ([(0, 519, 520)], [(0, 510, 520)], [(0, 300, 520)]):
            assert_as_alone(library, (9, 3), runs, threads)


@instruction_sets
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_a_row_does_not_see_does_not_reach_it(library, value):
    step = world(9, 3).step([(4, 90, 161), (4, 180, 181)])
    output = attend(library, step)
    damaged = step.kv_cache.clone()
    damaged[world(9, 3).block_tables[4, 5], :, :, 0] = value  # position 160
    after = attend(library, replace(step, kv_cache=damaged))
    assert torch.equal(after[:70], output[:70])
    assert after[70:].isnan().any(dim=-1).all()


def test_blocks_of_several_pages_give_the_same_bits_as_those_of_one():
    library, sequences = load_cpu_library(), world(9, 3)
    decodes = [(0, end - 1, end) for end in (512, 200, 192, 191, 127, 65)]
    small = sequences.step([(0, 100, 300), *decodes])
    output = attend(library, small)
    pages = sequences.kv_cache[sequences.block_tables[0, :16].long()]
    for block_size in (64, 128):
        blocks = pages.unflatten(0, (-1, block_size // 32)).permute(0, 2, 3, 1, 4, 5).flatten(3, 4)
        order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))
        block_tables = order.argsort().int().repeat(len(small.batch.seq_lens), 1)
        large = replace(
            small,
            kv_cache=blocks[order].contiguous(),
            batch=replace(small.batch, block_tables=block_tables),
        )
        assert torch.equal(attend(library, large), output)
