// How do activations meet quantized weights? As bytes, with one scale for each block of 32 inputs; where that is too
// coarse, as two bytes each.
#pragma once

#include "kernels.h"

namespace pageloom {

constexpr int kQuantBlock = 32;

// Rows are quantized in groups of at most kGroupRows, which share every load of a weight; only the last group has
// fewer. Their number is what the registers hold: one sum for each row beside a cell's weights.
#if defined(__AVX512F__)
constexpr int kGroupRows = 16;
#else
constexpr int kGroupRows = 4;
#endif

// One block of a group of kRows rows. x = code * scale; the sums are of codes, so that a weight's offset and
// minimum, which are the same for a whole block, are multiplied once.
template <int kRows>
struct ActivationBlock {
  int8_t codes[kRows][kQuantBlock];
  float scale[kRows];
  float scaled_sum[kRows];          // scale * sum of the codes
  int32_t minus_sum[kRows];         // the sum, negated
  int32_t minus_half_sums[2][kRows];  // of the first and the last 16 codes, negated
};
constexpr int64_t kActivationBlockBytes = sizeof(ActivationBlock<1>);
static_assert(sizeof(ActivationBlock<kGroupRows>) == kGroupRows * kActivationBlockBytes);

inline int64_t activation_bytes(int64_t num_rows, int64_t in_features) {
  return num_rows * (in_features / kQuantBlock) * kActivationBlockBytes;
}

// An input is one code, or two of which the second holds what the first leaves: two rows of codes for a row then.
constexpr int kMostCodesPerInput = 2;
static_assert(kGroupRows % kMostCodesPerInput == 0, "the codes of a row are in one group");

// Quantizes a group of `num_code_rows` rows of codes into [in_features / 32] blocks at `out`. The first code of an
// input is x / scale rounded to the nearest, ties to even, with scale = the largest |x| of the block / 127.
void quantize_group(const bf16* x, int64_t x_stride, int num_code_rows, int codes_per_input, int64_t in_features,
                    uint8_t* out);

}  // namespace pageloom
