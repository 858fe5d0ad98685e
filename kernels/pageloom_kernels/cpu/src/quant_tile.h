// How is one tile multiplied by a few rows? Bytes within a block exactly, blocks in float, in the order of the
// inputs: so a row's result depends on nothing but the row and the weights, down to the last bit.
#pragma once

#include "quant_cells.h"

namespace pageloom {

// Far enough ahead to hide the memory's latency from the first rows' loads; hardware stops at 4 KiB boundaries.
constexpr int kPrefetchBytes = 2048;

template <int kBytes>
inline void prefetch(const uint8_t* p) {
  for (int offset = 0; offset < kBytes; offset += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + offset), _MM_HINT_T0);
  }
}

// The sum over a block of (code - offset) * x, half scales included.
template <class Format, int kRows>
inline Ints multiply_cell(const Cell& cell, const ActivationBlock<kRows>& x, int row) {
  constexpr int kOffsetBits = std::countr_zero(static_cast<unsigned>(Format::kOffset));
  if constexpr (Format::kHasHalfScales) {
    constexpr int kSteps = kCellSteps / 2;
    Ints halves[2];
    for (int half = 0; half < 2; ++half) {
      const Ints start = shift_left<kOffsetBits>(splat_int(x.minus_half_sums[half][row]));
      const int8_t* const codes = x.codes[row] + half * kQuantBlock / 2;
      halves[half] = multiply_ints(
          add_products<Format::kMaxCode, kSteps>(start, cell.codes + half * kSteps, codes), cell.half_scales[half]);
    }
    return add_ints(halves[0], halves[1]);
  } else if constexpr (Format::kOffset > 0) {
    const Ints start = shift_left<kOffsetBits>(splat_int(x.minus_sum[row]));
    return add_products<Format::kMaxCode, kCellSteps>(start, cell.codes, x.codes[row]);
  } else {
    return add_products<Format::kMaxCode, kCellSteps>(splat_int(0), cell.codes, x.codes[row]);
  }
}

// `group` holds kRows quantized rows; one result for each, without bias.
template <class Format, int kRows>
void multiply_tile(const uint8_t* tile, int64_t in_features, const uint8_t* group, Floats* results) {
  const auto* const blocks = reinterpret_cast<const ActivationBlock<kRows>*>(group);
  Floats sums[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) sums[row] = zeros();
  for_each_cell<Format>(tile, in_features, [&](int64_t index, const uint8_t* next, const Cell& cell) {
    prefetch<Format::kCellBytes>(next + kPrefetchBytes);
    const ActivationBlock<kRows>& x = blocks[index];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Floats products = to_floats(multiply_cell<Format>(cell, x, row));
      sums[row] = multiply_add(products, mul(cell.scale, splat(x.scale[row])), sums[row]);
      if constexpr (Format::kHasMinimum) {
        sums[row] = multiply_add(cell.minimum, splat(x.scaled_sum[row]), sums[row]);
      }
    }
  });
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) results[row] = sums[row];
}

}  // namespace pageloom
