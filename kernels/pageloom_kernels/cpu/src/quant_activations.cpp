#include "quant_activations.h"

#include <algorithm>
#include <cstring>

#include "quant_simd.h"

namespace pageloom {
namespace {

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

inline __m128i encode(__m256i elements, __m256 inverse) {
  const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(widen(_mm256_castsi256_si128(elements)), inverse));
  const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(widen(_mm256_extracti128_si256(elements, 1)), inverse));
  const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
}

inline int32_t sum_of(__m128i codes) {
  // VPSADBW adds unsigned bytes.
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 16 * 128;
}

inline BlockCodes encode_block(const bf16* x, float* scale) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 16));
  const float largest = to_float(largest_magnitude(a, b));
  *scale = largest * (1.0f / 127.0f);
  // Below, the inverse would be infinite; such a block counts as zeros.
  const __m256 inverse = _mm256_set1_ps(largest > 1e-30f ? 127.0f / largest : 0.0f);
  return {encode(a, inverse), encode(b, inverse)};
}

}  // namespace

void quantize_group(const bf16* x, int64_t x_stride, int num_rows, int64_t in_features, uint8_t* out) {
  for (int64_t first = 0; first < in_features; first += kQuantBlock) {
    // An ActivationBlock<num_rows>.
    int8_t* const codes = reinterpret_cast<int8_t*>(out);
    float* const scale = reinterpret_cast<float*>(codes + num_rows * kQuantBlock);
    float* const scaled_sum = scale + num_rows;
    int32_t* const minus_sum = reinterpret_cast<int32_t*>(scaled_sum + num_rows);
    int32_t* const minus_half_sums = minus_sum + num_rows;
    for (int row = 0; row < num_rows; ++row) {
      const BlockCodes block = encode_block(x + row * x_stride + first, &scale[row]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + row * kQuantBlock), block.first);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + row * kQuantBlock + 16), block.last);
      const int32_t half_sums[2] = {sum_of(block.first), sum_of(block.last)};
      scaled_sum[row] = scale[row] * static_cast<float>(half_sums[0] + half_sums[1]);
      minus_sum[row] = -(half_sums[0] + half_sums[1]);
      minus_half_sums[row] = -half_sums[0];
      minus_half_sums[num_rows + row] = -half_sums[1];
    }
    out += num_rows * kActivationBlockBytes;
  }
}

}  // namespace pageloom
