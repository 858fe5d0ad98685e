// x @ weight.T for weights that stay in ggml's quantized blocks, for any number of rows.
#pragma once

#include <vector>

#include "kernels.h"
#include "memory.h"

namespace pageloom {

struct QuantFormat;  // quant_format.h

// Rows of one ggml type, in tiles of kLanes outputs (quant_cells.h). Lanes beyond num_outputs are zero.
struct QuantPart {
  const QuantFormat* format;
  int64_t first_output, num_outputs;
  int64_t num_tiles, tile_bytes;
  const uint8_t* tiles;
};

// Parts one below the other: the projections that a layer multiplies at once may be of different types.
struct QuantMatrix {
  int64_t in_features;
  int codes_per_input = 1;  // 1 or 2 bytes for each input that it is multiplied by
  int64_t out_features = 0;
  std::vector<QuantPart> parts;
};

// Whether there are kernels for this type and rows of so many inputs.
bool quant_supports(int ggml_type, int64_t in_features);

// Puts `num_outputs` rows of ggml blocks, which are not needed afterwards, below those of `matrix`. The type must be
// supported.
void quant_append(ThreadPool& pool, Arena& arena, QuantMatrix& matrix, int ggml_type, const void* blocks,
                  int64_t num_outputs);

// One row of the matrix, dequantized (an embedding looked up).
void quant_row(const QuantMatrix& matrix, int64_t row, bf16* out);

// Of all that follow, which quantize x to bytes (quant_activations.h). In each of them a row's result
// is computed in the same order whatever the other rows and the threads are: whole numbers within 32 inputs, then
// one fp32 sum per output over those in ascending order. So all instruction sets give the same bits as well.
size_t quant_scratch_bytes(const QuantMatrix& matrix, int64_t num_rows, int num_threads);

// y = x @ matrix.T + bias, rounded once; bias may be nullptr. The strides are the distances between rows.
void quant_gemm(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                const bf16* bias, bf16* y, int64_t y_stride, void* scratch);

// The same sums without rounding, [num_rows, out_features].
void quant_gemm_float(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride,
                      int64_t num_rows, float* y, void* scratch);

// Which output of each row is the largest, the first of equals; -1 where a sum is NaN or the largest infinite.
void quant_gemm_argmax(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride,
                       int64_t num_rows, int64_t* winners, void* scratch);

}  // namespace pageloom
