// x @ weight.T for bf16 weights that are packed once, for any number of rows.
#pragma once

#include "kernels.h"
#include "memory.h"

namespace pageloom {

// Panels of 32 outputs, one after the other, each [in_features / 2][32][2]: one load takes two inputs' weights of
// kLanes outputs. The last panel is filled up with zeros.
struct Bf16Matrix {
  static constexpr int kPanelOutputs = 32;

  const bf16* panels;
  int64_t out_features;
  int64_t in_features;  // even

  int num_panels() const { return static_cast<int>((out_features + kPanelOutputs - 1) / kPanelOutputs); }
  const bf16* panel(int64_t index) const { return panels + index * kPanelOutputs * in_features; }
};

// `weight` is [out_features, in_features] without gaps, and not needed afterwards.
Bf16Matrix bf16_pack(ThreadPool& pool, Arena& arena, const bf16* weight, int64_t out_features, int64_t in_features);

// One row of the matrix (an embedding looked up).
void bf16_row(const Bf16Matrix& matrix, int64_t row, bf16* out);

// In each of these, a row's result is computed in the same order whatever the other rows and the threads are:
// one fp32 sum per output, over the inputs in ascending pairs.

// y = x @ matrix.T + bias, rounded once; bias may be nullptr. The strides are the distances between rows.
void bf16_gemm(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
               const bf16* bias, bf16* y, int64_t y_stride);

// out = silu(gate) * up, where gate and up are the halves of what bf16_gemm gives; rounded where silu_mul_rows rounds.
// out is [num_rows, out_features / 2]. Only for matrices whose halves are whole panels, as has_panel_halves says.
inline bool has_panel_halves(const Bf16Matrix& matrix) {
  return matrix.out_features % (2 * Bf16Matrix::kPanelOutputs) == 0;
}
void bf16_gemm_silu_mul(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                        const bf16* bias, bf16* out, int64_t out_stride);

// The same sums without rounding, [num_rows, out_features].
void bf16_gemm_float(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                     float* y);

// Which output of each row is the largest, the first of equals; -1 where a sum is NaN or the largest infinite.
// `scratch` as bf16_gemm_argmax_scratch_bytes says.
void bf16_gemm_argmax(ThreadPool& pool, const Bf16Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                      int64_t* winners, void* scratch);
size_t bf16_gemm_argmax_scratch_bytes(int64_t num_rows, int num_threads);

}  // namespace pageloom
