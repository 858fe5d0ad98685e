#include "quant_activations.h"

#include <algorithm>
#include <cstring>

#include "quant_simd.h"

namespace pageloom {
namespace {

// A second code counts in 254ths of the first one's step, of which it has to hold half, to either side.
constexpr float kRestSteps = 254.0f;

// 32 elements, a register of half the block's bytes each.
struct BlockCodes {
  __m128i first, last;
};

// The bits of the largest magnitude. As whole numbers bf16 magnitudes compare as they do as numbers, and a NaN is
// larger than all: it becomes the scale, and with it every result of the row.
inline bf16 largest_magnitude(__m256i a, __m256i b) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i both = _mm256_max_epu16(_mm256_and_si256(a, magnitude), _mm256_and_si256(b, magnitude));
  const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  // The smallest of the complements: there is a horizontal minimum only.
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
  return static_cast<bf16>(~_mm_cvtsi128_si32(smallest));
}

inline __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline __m128i to_bytes(__m256 low, __m256 high) {
  const __m256i shorts = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
  const __m256i ordered = _mm256_permute4x64_epi64(shorts, 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}

inline __m128i encode(__m256i elements, __m256 inverse) {
  return to_bytes(_mm256_mul_ps(widen(_mm256_castsi256_si128(elements)), inverse),
                  _mm256_mul_ps(widen(_mm256_extracti128_si256(elements, 1)), inverse));
}

// What `codes` at `scale` leave of the elements.
inline __m128i encode_rest(__m256i elements, __m128i codes, float scale, __m256 inverse) {
  const auto rest = [&](__m128i halves, __m128i eight_codes) {
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_codes));
    return _mm256_mul_ps(_mm256_fnmadd_ps(values, _mm256_set1_ps(scale), widen(halves)), inverse);
  };
  return to_bytes(rest(_mm256_castsi256_si128(elements), codes),
                  rest(_mm256_extracti128_si256(elements, 1), _mm_unpackhi_epi64(codes, codes)));
}

inline int32_t sum_of(__m128i codes) {
  // VPSADBW adds unsigned bytes.
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
}

// One block of a row: codes and their scales, [codes_per_input] each.
inline void encode_block(const bf16* x, int codes_per_input, BlockCodes* codes, float* scales) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16));
  const float largest = to_float(largest_magnitude(a, b));
  scales[0] = largest * (1.0f / 127.0f);
  // Below, the inverse would be infinite; such a block counts as zeros.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  codes[0] = {encode(a, _mm256_set1_ps(inverse)), encode(b, _mm256_set1_ps(inverse))};
  if (codes_per_input == 1) return;
  scales[1] = scales[0] * (1.0f / kRestSteps);
  const __m256 rest_inverse = _mm256_set1_ps(inverse * kRestSteps);
  codes[1] = {encode_rest(a, codes[0].first, scales[0], rest_inverse),
              encode_rest(b, codes[0].last, scales[0], rest_inverse)};
}

}  // namespace

void quantize_group(const bf16* x, int64_t x_stride, int num_code_rows, int codes_per_input, int64_t in_features,
                    uint8_t* out) {
  for (int64_t first = 0; first < in_features; first += kQuantBlock) {
    // An ActivationBlock<num_code_rows>.
    int8_t* const codes = reinterpret_cast<int8_t*>(out);
    float* const scale = reinterpret_cast<float*>(codes + num_code_rows * kQuantBlock);
    float* const scaled_sum = scale + num_code_rows;
    int32_t* const minus_sum = reinterpret_cast<int32_t*>(scaled_sum + num_code_rows);
    int32_t* const minus_half_sums = minus_sum + num_code_rows;
    for (int row = 0; row < num_code_rows; row += codes_per_input) {
      BlockCodes blocks[kMostCodesPerInput];
      encode_block(x + row / codes_per_input * x_stride + first, codes_per_input, blocks, &scale[row]);
      for (int i = row; i < row + codes_per_input; ++i) {
        const BlockCodes& block = blocks[i - row];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i * kQuantBlock), block.first);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i * kQuantBlock + 16), block.last);
        const int32_t half_sums[2] = {sum_of(block.first), sum_of(block.last)};
        scaled_sum[i] = scale[i] * static_cast<float>(half_sums[0] + half_sums[1]);
        minus_sum[i] = -(half_sums[0] + half_sums[1]);
        minus_half_sums[i] = -half_sums[0];
        minus_half_sums[num_code_rows + i] = -half_sums[1];
      }
    }
    out += num_code_rows * kActivationBlockBytes;
  }
}

}  // namespace pageloom
