// How are some rows multiplied with keys, and with values? As many rows and vectors at a time as there are registers
// for their sums, two elements of each sum in a step.
#pragma once

#include <cstring>

#include "simd.h"

namespace pageloom {

// Vectors of tokens, or of dimensions.
constexpr int kRegisterVectors = 4;

#if defined(__AVX512BF16__)

constexpr int kRegisterRows = 6;

// An element of a row: of a query, or a weight.
using Factor = bf16;

inline void store_factors(Factor* factors, Floats x) { store_bf16(factors, x); }
inline void copy_factors(Factor* factors, const bf16* elements, int64_t count) {
  std::memcpy(factors, elements, sizeof(bf16) * count);
}

#else

#if defined(__AVX512F__)
constexpr int kRegisterRows = 5;
#else
constexpr int kRegisterRows = 3;
#endif

// Without products of bf16, rows are widened once and not for each product.
using Factor = float;

inline void store_factors(Factor* factors, Floats x) { store(factors, x); }
inline void copy_factors(Factor* factors, const bf16* elements, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(factors + i, load_bf16(elements + i));
}

#endif

template <int kRows, int kVectors>
struct Products {
  Floats sums[kRows][kVectors];

  Products() {
    for (auto& row : sums) {
      for (Floats& sum : row) sum = zeros();
    }
  }

  // The two elements of each vector's lanes are `offset` after `pairs`, and those of the first row are at `factors`.
  void add(const bf16* const (&pairs)[kVectors], int64_t offset, const Factor* factors, int64_t row_stride) {
#if defined(__AVX512BF16__)
    Pairs lanes[kVectors];
    for (int v = 0; v < kVectors; ++v) lanes[v] = load_pairs(pairs[v] + offset);
    for (int r = 0; r < kRows; ++r) {
      const Pairs pair = splat_pair(pair_at(factors + r * row_stride));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot_pairs(sums[r][v], lanes[v], pair);
    }
#else
    for (int v = 0; v < kVectors; ++v) {
      const Pairs lanes = load_pairs(pairs[v] + offset);
      const Floats even = even_of(lanes), odd = odd_of(lanes);
      for (int r = 0; r < kRows; ++r) {
        const Factor* pair = factors + r * row_stride;
        sums[r][v] = multiply_add(even, splat(pair[0]), multiply_add(odd, splat(pair[1]), sums[r][v]));
      }
    }
#endif
  }

  void store_rows(float* memory, int64_t row_stride) const {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store(memory + r * row_stride + v * kLanes, sums[r][v]);
    }
  }
};

// kernel.operator()<kRows>() for a number of rows up to kRegisterRows.
template <int kRows = kRegisterRows, class Kernel>
inline void with_rows(int num_rows, const Kernel& kernel) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return with_rows<kRows - 1>(num_rows, kernel);
  }
  kernel.template operator()<kRows>();
}

}  // namespace pageloom
