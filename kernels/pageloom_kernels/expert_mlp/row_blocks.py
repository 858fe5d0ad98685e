"""What the two expert kernels share: which rows a program works on."""

import triton.language as tl

from pageloom_kernels.triton_jit import jit


@jit()
def locate_rows(
    p_first_pair: tl.tensor, p_first_block: tl.tensor, i_expert: tl.tensor, i_block: tl.tensor, BLOCK_M: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The rows of a block in the order of `ExpertBlocks.pairs`, [BLOCK_M] int64, and whether they are the expert's."""
    i_first = tl.load(p_first_pair + i_expert) + (i_block - tl.load(p_first_block + i_expert)) * BLOCK_M
    o_row = i_first + tl.arange(0, BLOCK_M)
    return o_row, o_row < tl.load(p_first_pair + i_expert + 1)
