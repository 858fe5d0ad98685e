// How do the parts of a row's attention become its output? Partials of spans, added up in the order of the context.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "simd.h"

namespace pageloom {

// What rows take from some tokens: sums over the tokens of weight times value, and of the weights themselves. A weight
// is 2^(score - maximum), for the row's largest score, with scores in units of log2.
struct Partial {
  float* maxima;  // [rows], readable and writable up to a whole vector past the last
  float* sums;    // [rows, row_floats]: head_dim weighted values, then the sum of the weights, spread over the lanes
};

inline int row_floats(int head_dim) { return head_dim + kLanes; }
inline int padded_rows(int num_rows) { return (num_rows + kLanes - 1) / kLanes * kLanes; }
inline int64_t partial_floats(int num_rows, int head_dim) {
  return padded_rows(num_rows) + int64_t{num_rows} * row_floats(head_dim);
}
inline Partial partial_at(float* memory, int num_rows) { return {memory, memory + padded_rows(num_rows)}; }
// The rows from `first` on.
inline Partial rows_from(const Partial& partial, int first, int head_dim) {
  return {partial.maxima + first, partial.sums + int64_t{first} * row_floats(head_dim)};
}

// 2^x for x <= 0 within 3e-6; below -126 the result is that of -126, the smallest normal number. A NaN stays one.
inline Floats power_of_two(Floats x) {
  x = maximum(splat(-126.0f), x);
  const Floats n = round_to_integer(x);
  const Floats f = sub(x, n);
  Floats p = splat(9.5828532e-3f);
  for (const float coefficient : {5.5906426e-2f, 2.4024099e-1f, 6.9312419e-1f, 1.0f}) {
    p = multiply_add(p, f, splat(coefficient));
  }
  return scale_by_power(p, n);
}

// Sums over no tokens.
inline void clear(const Partial& total, int num_rows, int head_dim) {
  std::fill_n(total.maxima, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(total.sums, int64_t{num_rows} * row_floats(head_dim), 0.0f);
}

// total += part. Floating point is not associative: parts are added one by one, from the context's start to its end.
inline void accumulate(const Partial& total, const Partial& part, int num_rows, int head_dim) {
  for (int first = 0; first < num_rows; first += kLanes) {
    alignas(64) float kept[kLanes], taken[kLanes];
    const Floats old_maxima = load(total.maxima + first), new_maxima = load(part.maxima + first);
    const Floats maxima = maximum(old_maxima, new_maxima);
    store(total.maxima + first, maxima);
    store(kept, power_of_two(sub(old_maxima, maxima)));
    store(taken, power_of_two(sub(new_maxima, maxima)));
    for (int i = 0; i < std::min(num_rows - first, kLanes); ++i) {
      const Floats keep = splat(kept[i]), take = splat(taken[i]);
      float* sum = total.sums + int64_t{first + i} * row_floats(head_dim);
      const float* added = part.sums + int64_t{first + i} * row_floats(head_dim);
      for (int d = 0; d < row_floats(head_dim); d += kLanes) {
        store(sum + d, multiply_add(load(added + d), take, mul(load(sum + d), keep)));
      }
    }
  }
}

// The rows' attention, [num_rows, head_dim]; zeros where there was no token.
inline void finish(const Partial& total, int num_rows, int head_dim, bf16* output) {
  for (int i = 0; i < num_rows; ++i) {
    const float* sums = total.sums + int64_t{i} * row_floats(head_dim);
    const float weight = sum(load(sums + head_dim));
    const Floats scale = splat(weight == 0.0f ? 0.0f : 1.0f / weight);
    for (int d = 0; d < head_dim; d += kLanes) {
      store_bf16(output + int64_t{i} * head_dim + d, mul(load(sums + d), scale));
    }
  }
}

}  // namespace pageloom
