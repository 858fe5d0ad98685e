// Which output of a row is the largest, where the outputs come in pieces and in any order?
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace pageloom {

// The largest output of a row so far, and whether any was NaN.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  int32_t has_nan = 0;
  int64_t index = std::numeric_limits<int64_t>::max();

  void take(float other, int64_t other_index) {
    if (other > value || (other == value && other_index < index)) {
      value = other;
      index = other_index;
    }
  }

  // Outputs first, first + 1, ...; those from `end` on are none.
  template <int kVectors>
  void take(const Floats (&outputs)[kVectors], int64_t first, int64_t end) {
    const Floats none = splat(-std::numeric_limits<float>::infinity());
    Floats top = none;
    Floats total = zeros();
    for (int v = 0; v < kVectors; ++v) {
      const int left = static_cast<int>(std::clamp<int64_t>(end - first - kLanes * v, 0, kLanes));
      top = maximum(top, first_lanes(left, outputs[v], none));
      total = add(total, first_lanes(left, outputs[v], zeros()));
    }
    // A sum of finite numbers is no NaN, and one of opposite infinities means that the row is lost as well.
    if (std::isnan(sum(total))) has_nan = 1;
    if (largest(top) < value) return;
    alignas(64) float values[kVectors * kLanes];
    for (int v = 0; v < kVectors; ++v) store(values + kLanes * v, outputs[v]);
    for (int64_t n = 0; n < std::min<int64_t>(kVectors * kLanes, end - first); ++n) take(values[n], first + n);
  }
};

// The index of the best of `bests` [num_threads, num_rows] for one row; -1 where an output is NaN or the largest
// infinite.
inline int64_t winner(const Best* bests, int64_t num_threads, int64_t num_rows, int64_t row) {
  Best best = bests[row];
  for (int64_t thread = 1; thread < num_threads; ++thread) {
    const Best& other = bests[thread * num_rows + row];
    best.take(other.value, other.index);
    best.has_nan |= other.has_nan;
  }
  return best.has_nan != 0 || std::isinf(best.value) ? -1 : best.index;
}

}  // namespace pageloom
