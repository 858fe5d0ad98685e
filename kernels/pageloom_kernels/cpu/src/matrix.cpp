#include "matrix.h"

#include "row_kernels.h"

namespace pageloom {

size_t matrix_scratch_bytes(const Matrix& matrix, int64_t num_rows, int num_threads) {
  if (const auto* quantized = std::get_if<QuantMatrix>(&matrix)) {
    return quant_scratch_bytes(*quantized, num_rows, num_threads);
  }
  return bf16_gemm_argmax_scratch_bytes(num_rows, num_threads);
}

void matrix_row(const Matrix& matrix, int64_t row, bf16* out) {
  if (const auto* quantized = std::get_if<QuantMatrix>(&matrix)) return quant_row(*quantized, row, out);
  bf16_row(std::get<Bf16Matrix>(matrix), row, out);
}

void matrix_gemm(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                 const bf16* bias, bf16* y, int64_t y_stride, void* scratch) {
  if (const auto* quantized = std::get_if<QuantMatrix>(&matrix)) {
    return quant_gemm(pool, *quantized, x, x_stride, num_rows, bias, y, y_stride, scratch);
  }
  bf16_gemm(pool, std::get<Bf16Matrix>(matrix), x, x_stride, num_rows, bias, y, y_stride);
}

void matrix_gemm_silu_mul(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                          const bf16* bias, bf16* gate_up, bf16* out, void* scratch) {
  const int64_t half = out_features(matrix) / 2;
  if (const auto* plain = std::get_if<Bf16Matrix>(&matrix); plain != nullptr && has_panel_halves(*plain)) {
    return bf16_gemm_silu_mul(pool, *plain, x, x_stride, num_rows, bias, out, half);
  }
  matrix_gemm(pool, matrix, x, x_stride, num_rows, bias, gate_up, 2 * half, scratch);
  for_row_groups(pool, num_rows, [&](int64_t first, int64_t last) { silu_mul_rows(gate_up, half, first, last, out); });
}

void matrix_gemm_float(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                       float* y, void* scratch) {
  if (const auto* quantized = std::get_if<QuantMatrix>(&matrix)) {
    return quant_gemm_float(pool, *quantized, x, x_stride, num_rows, y, scratch);
  }
  bf16_gemm_float(pool, std::get<Bf16Matrix>(matrix), x, x_stride, num_rows, y);
}

void matrix_gemm_argmax(ThreadPool& pool, const Matrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                        int64_t* winners, void* scratch) {
  if (const auto* quantized = std::get_if<QuantMatrix>(&matrix)) {
    return quant_gemm_argmax(pool, *quantized, x, x_stride, num_rows, winners, scratch);
  }
  bf16_gemm_argmax(pool, std::get<Bf16Matrix>(matrix), x, x_stride, num_rows, winners, scratch);
}

}  // namespace pageloom
