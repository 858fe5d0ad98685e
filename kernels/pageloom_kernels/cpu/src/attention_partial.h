// How do the parts of a row's attention become its output? Partials of spans, added up in the order of the context.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "simd.h"

namespace pageloom {

// Softmax-weighted values of some rows, all three relative to a power of two for each row: the row's output is
// values / sums. Weights are 2^(score - maximum), with scores in units of log2.
struct Partial {
  float* maxima;  // [rows], the largest score
  float* sums;    // [rows], of weights
  float* values;  // [rows, head_dim], sums of weighted values
};

// The vectors of maxima and sums may be read and written past their last row, up to a whole vector.
constexpr int kRowPadding = 16;
inline int padded_rows(int num_rows) { return (num_rows + kRowPadding - 1) / kRowPadding * kRowPadding; }
inline int64_t partial_floats(int num_rows, int head_dim) {
  return 2 * padded_rows(num_rows) + int64_t{num_rows} * head_dim;
}
inline Partial partial_at(float* memory, int num_rows) {
  const int padded = padded_rows(num_rows);
  return {memory, memory + padded, memory + 2 * padded};
}
// Rows from `first` on, all in one partial.
inline Partial rows_from(const Partial& partial, int first, int head_dim) {
  return {partial.maxima + first, partial.sums + first, partial.values + int64_t{first} * head_dim};
}

// 2^x for x <= 0 within 1e-7; below -126 the result is that of -126, the smallest normal number.
inline Floats power_of_two(Floats x) {
  x = maximum(splat(-126.0f), x);
  const Floats n = round_to_integer(x);
  const Floats f = sub(x, n);
  Floats p = splat(1.3264727255e-3f);
  for (const float coefficient :
       {9.6715127857e-3f, 5.5507337445e-2f, 2.4022242083e-1f, 6.9314697760e-1f, 1.0f}) {
    p = multiply_add(p, f, splat(coefficient));
  }
  return scale_by_power(p, n);
}

// A sum that nothing has been added to.
inline void clear(const Partial& total, int num_rows, int head_dim) {
  for (int i = 0; i < num_rows; ++i) {
    total.maxima[i] = -std::numeric_limits<float>::infinity();
    total.sums[i] = 0.0f;
  }
  std::memset(total.values, 0, sizeof(float) * num_rows * head_dim);
}

// total += part. Not associative in floating point: spans are added one by one, from the first to the last.
inline void accumulate(const Partial& total, const Partial& part, int num_rows, int head_dim) {
  for (int first = 0; first < num_rows; first += kLanes) {
    alignas(64) float keeps[kLanes], takes[kLanes];
    const Floats old_maxima = load(total.maxima + first), new_maxima = load(part.maxima + first);
    const Floats maxima = maximum(old_maxima, new_maxima);
    const Floats keep = power_of_two(sub(old_maxima, maxima)), take = power_of_two(sub(new_maxima, maxima));
    store(total.sums + first, multiply_add(load(part.sums + first), take, mul(load(total.sums + first), keep)));
    store(total.maxima + first, maxima);
    store(keeps, keep);
    store(takes, take);
    for (int i = first; i < std::min(num_rows, first + kLanes); ++i) {
      const Floats row_keep = splat(keeps[i - first]), row_take = splat(takes[i - first]);
      float* sum = total.values + int64_t{i} * head_dim;
      const float* added = part.values + int64_t{i} * head_dim;
      for (int d = 0; d < head_dim; d += kLanes) {
        store(sum + d, multiply_add(load(added + d), row_take, mul(load(sum + d), row_keep)));
      }
    }
  }
}

// The outputs of one query token's heads in a group, [num_rows, head_dim]; zeros where there was no context.
inline void finish(const Partial& total, int num_rows, int head_dim, bf16* output) {
  for (int i = 0; i < num_rows; ++i) {
    const Floats scale = splat(total.sums[i] == 0.0f ? 0.0f : 1.0f / total.sums[i]);
    for (int d = 0; d < head_dim; d += kLanes) {
      const int64_t at = int64_t{i} * head_dim + d;
      store_bf16(output + at, mul(load(total.values + at), scale));
    }
  }
}

}  // namespace pageloom
