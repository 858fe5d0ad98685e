// What does a linear layer multiply by? One weight, whichever way it is stored.
#pragma once

#include <variant>

#include "bf16_matrix.h"
#include "quant_matrix.h"

namespace pageloom {

using Matrix = std::variant<Bf16Matrix, QuantMatrix>;

inline int64_t in_features(const Matrix& matrix) {
  return std::visit([](const auto& stored) { return stored.in_features; }, matrix);
}
inline int64_t out_features(const Matrix& matrix) {
  return std::visit([](const auto& stored) { return stored.out_features; }, matrix);
}

// Enough for each of the products below.
size_t matrix_scratch_bytes(const Matrix& matrix, int64_t num_rows, int num_threads);

// As bf16_row, bf16_gemm, bf16_gemm_float and bf16_gemm_argmax, or their quantized counterparts.
void matrix_row(const Matrix& matrix, int64_t row, bf16* out);
void matrix_gemm(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                 const bf16* bias, bf16* y, int64_t y_stride, void* scratch);
// silu(gate) * up of a matrix that has gate and up below each other; `gate_up`, [num_rows, out_features], may be
// used on the way. `out` is [num_rows, out_features / 2].
void matrix_gemm_silu_mul(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                          const bf16* bias, bf16* gate_up, bf16* out, void* scratch);
void matrix_gemm_float(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                       float* y, void* scratch);
void matrix_gemm_argmax(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                        int64_t* winners, void* scratch);

}  // namespace pageloom
