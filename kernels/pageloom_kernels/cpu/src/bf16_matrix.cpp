#include "bf16_matrix.h"

#include <algorithm>
#include <cstring>

#include "activation.h"
#include "argmax.h"
#include "simd.h"

namespace pageloom {
namespace {

constexpr int kPanelOutputs = Bf16Matrix::kPanelOutputs;
// A tile multiplies kTileRows rows by two vectors of outputs. Its sums, the weights (widened where the processor
// has no bf16 product) and one input have to fit into the registers: 32, or 16 of AVX2.
constexpr int kTileVectors = 2;
constexpr int kTileOutputs = kTileVectors * kLanes;
constexpr int kTileRows = kLanes == 16 ? 14 : 4;
// How far ahead of the sums the weights are fetched, in pairs of inputs: 128 bytes of a panel each. Memory is what
// few rows wait for, and they use the weights up at once: into the first level of the cache. Several rows have the
// time to take them from the second, where they are in the way of nothing.
constexpr int64_t kFetchAhead = 64;
template <int kRows>
void fetch_ahead(const bf16* weights) {
  for (int line = 0; line < kTileOutputs / 16; ++line) {
    __builtin_prefetch(weights + kFetchAhead * 2 * kPanelOutputs + 32 * line, 0, kRows <= kTileRows / 3 ? 3 : 2);
  }
}

// Multiplies kRows rows by the kTileOutputs outputs that start at `first` in a panel. `output` takes each row's sums:
// output(row, first_output, vectors).
template <int kRows, class Output>
inline void multiply_tile(const Bf16Matrix& matrix, int panel, int first, const bf16* x, int64_t x_stride,
                          int64_t first_row, const Output& output) {
  x += first_row * x_stride;
  const bf16* weights = matrix.panel(panel) + 2 * first;
  // Two plain arrays: GCC keeps neither a struct nor a matrix of vectors in registers.
  Floats low[kRows], high[kRows];
  for (int m = 0; m < kRows; ++m) low[m] = high[m] = zeros();
  for (int64_t k = 0; k < matrix.in_features; k += 2, weights += 2 * kPanelOutputs) {
    const Pairs low_weights = load_pairs(weights), high_weights = load_pairs(weights + 2 * kLanes);
    fetch_ahead<kRows>(weights);
    // The rows of the next tile, a line at a time: each row of a tile is too short for the processor to foresee it.
    if constexpr (kRows == kTileRows) __builtin_prefetch(x + kRows * x_stride + 16 * k, 0, 2);
    for (int m = 0; m < kRows; ++m) {
      const Pairs pair = splat_pair(pair_at(x + m * x_stride + k));
      low[m] = dot_pairs(low[m], low_weights, pair);
      high[m] = dot_pairs(high[m], high_weights, pair);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    const Floats sums[kTileVectors] = {low[m], high[m]};
    output(first_row + m, int64_t{panel} * kPanelOutputs + first, sums);
  }
}

template <int kRows, class Output>
void multiply_rest(const Bf16Matrix& matrix, int panel, int first, const bf16* x, int64_t x_stride,
                   int64_t first_row, int64_t num_rows, const Output& output) {
  if constexpr (kRows > 0) {
    if (num_rows == kRows) {
      multiply_tile<kRows>(matrix, panel, first, x, x_stride, first_row, output);
    } else {
      multiply_rest<kRows - 1>(matrix, panel, first, x, x_stride, first_row, num_rows, output);
    }
  }
}

template <class Output>
void multiply_panel(const Bf16Matrix& matrix, int panel, const bf16* x, int64_t x_stride, int64_t num_rows,
                    const Output& output) {
  for (int first = 0; first < kPanelOutputs; first += kTileOutputs) {
    int64_t row = 0;
    for (; row + kTileRows <= num_rows; row += kTileRows) {
      multiply_tile<kTileRows>(matrix, panel, first, x, x_stride, row, output);
    }
    multiply_rest<kTileRows - 1>(matrix, panel, first, x, x_stride, row, num_rows - row, output);
  }
}

// An Output that stores bf16(sums + bias).
struct RoundAndStore {
  bf16* y;
  int64_t y_stride;
  const bf16* bias;
  int64_t out_features;

  void operator()(int64_t row, int64_t first, const Floats (&sums)[kTileVectors]) const {
    bf16* target = y + row * y_stride + first;
    if (first + kTileOutputs > out_features) return store_part(sums, first, target);
    for (int v = 0; v < kTileVectors; ++v) {
      store_bf16(target + kLanes * v, with_bias(sums[v], bias, first + kLanes * v));
    }
  }

  void store_part(const Floats (&sums)[kTileVectors], int64_t first, bf16* target) const {
    alignas(64) float values[kTileOutputs];
    std::memcpy(values, sums, sizeof values);
    for (int64_t n = 0; n < out_features - first; ++n) {
      target[n] = to_bf16(bias == nullptr ? values[n] : values[n] + to_float(bias[first + n]));
    }
  }

  static Floats with_bias(Floats sums, const bf16* bias, int64_t first) {
    return bias == nullptr ? sums : add(sums, load_bf16(bias + first));
  }
};

}  // namespace

Bf16Matrix bf16_pack(ThreadPool& pool, Arena& arena, const bf16* weight, int64_t out_features, int64_t in_features) {
  Bf16Matrix matrix{nullptr, out_features, in_features};
  const size_t panel_bytes = sizeof(bf16) * kPanelOutputs * in_features;
  matrix.panels = static_cast<bf16*>(arena.allocate(panel_bytes * matrix.num_panels()));
  pool.run(matrix.num_panels(), [&](int panel, int) {
    bf16* packed = const_cast<bf16*>(matrix.panel(panel));
    std::memset(packed, 0, panel_bytes);
    const int64_t first = int64_t{panel} * kPanelOutputs;
    const int64_t num_outputs = std::min<int64_t>(kPanelOutputs, out_features - first);
    for (int64_t n = 0; n < num_outputs; ++n) {
      const bf16* row = weight + (first + n) * in_features;
      for (int64_t k = 0; k < in_features; k += 2) std::memcpy(packed + (k * kPanelOutputs + 2 * n), row + k, 4);
    }
  });
  return matrix;
}

void bf16_row(const Bf16Matrix& matrix, int64_t row, bf16* out) {
  const bf16* packed = matrix.panel(row / kPanelOutputs) + 2 * (row % kPanelOutputs);
  for (int64_t k = 0; k < matrix.in_features; k += 2) std::memcpy(out + k, packed + k * kPanelOutputs, 4);
}

void bf16_gemm(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
               const bf16* bias, bf16* y, int64_t y_stride) {
  const RoundAndStore round_and_store{y, y_stride, bias, matrix.out_features};
  pool.run(matrix.num_panels(), [&](int panel, int) {
    multiply_panel(matrix, panel, x, x_stride, num_rows, round_and_store);
  });
}

void bf16_gemm_silu_mul(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                        const bf16* bias, bf16* out, int64_t out_stride) {
  const int64_t half = matrix.out_features / 2;
  const int half_panels = matrix.num_panels() / 2;
  // The gate waits in `out` for its up, which takes its place.
  const RoundAndStore store_gate{out, out_stride, bias, half};
  const auto store_product = [&](int64_t row, int64_t first, const Floats (&sums)[kTileVectors]) {
    bf16* target = out + row * out_stride + first - half;
    for (int v = 0; v < kTileVectors; ++v) {
      const Floats up = rounded(RoundAndStore::with_bias(sums[v], bias, first + kLanes * v));
      store_bf16(target + kLanes * v, silu_mul(load_bf16(target + kLanes * v), up));
    }
  };
  pool.run(half_panels, [&](int panel, int) {
    multiply_panel(matrix, panel, x, x_stride, num_rows, store_gate);
    multiply_panel(matrix, panel + half_panels, x, x_stride, num_rows, store_product);
  });
}

void bf16_gemm_float(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                     float* y) {
  const auto store_sums = [&](int64_t row, int64_t first, const Floats (&sums)[kTileVectors]) {
    const int64_t num_outputs = std::min<int64_t>(kTileOutputs, matrix.out_features - first);
    if (num_outputs > 0) std::memcpy(y + row * matrix.out_features + first, sums, num_outputs * sizeof(float));
  };
  pool.run(matrix.num_panels(), [&](int panel, int) {
    multiply_panel(matrix, panel, x, x_stride, num_rows, store_sums);
  });
}

size_t bf16_gemm_argmax_scratch_bytes(int64_t num_rows, int num_threads) {
  return num_rows * num_threads * sizeof(Best);
}

void bf16_gemm_argmax(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                      int64_t* winners, void* scratch) {
  Best* bests = static_cast<Best*>(scratch);  // [num_threads, num_rows]
  std::fill_n(bests, num_rows * pool.num_threads(), Best{});
  pool.run(matrix.num_panels(), [&](int panel, int thread) {
    multiply_panel(matrix, panel, x, x_stride, num_rows,
                   [&](int64_t row, int64_t first, const Floats (&sums)[kTileVectors]) {
                     bests[thread * num_rows + row].take(sums, first, matrix.out_features);
                   });
  });
  for (int64_t row = 0; row < num_rows; ++row) winners[row] = winner(bests, pool.num_threads(), num_rows, row);
}

}  // namespace pageloom
