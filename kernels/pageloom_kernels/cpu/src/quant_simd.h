// How does this instruction set multiply bytes? Whole numbers beside simd.h's floats.
#pragma once

#include "simd.h"

namespace pageloom {

// A lane of Codes holds four neighbouring weights of one output, a byte each; a lane of Ints their sum of products.
// Where VNNI multiplies them, codes are unsigned; elsewhere codes of eight bits are signed, because the products of
// two unsigned ones do not fit the 16 bits in which VPMADDUBSW adds them.
#if defined(__AVX512VNNI__)
constexpr bool kHasUnsignedBytes = true;
#else
constexpr bool kHasUnsignedBytes = false;
#endif

#if defined(__AVX512F__)

using Ints = __m512i;
using Codes = __m512i;

inline Ints splat_int(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints multiply_ints(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
template <int kBits>
inline Ints shift_left(Ints x) {
  return _mm512_slli_epi32(x, kBits);
}
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints load_signed_bytes(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints load_unsigned_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_codes(uint8_t* p, Codes x) { _mm512_storeu_si512(p, x); }
inline Codes or_codes(Codes a, Codes b) { return _mm512_or_si512(a, b); }
// The bits of each byte from kShift on that `mask` keeps.
template <int kShift>
inline Codes bits_of(Codes x, uint8_t mask) {
  return _mm512_and_si512(_mm512_srli_epi16(x, kShift), _mm512_set1_epi8(static_cast<char>(mask)));
}
template <int kShift>
inline Codes shift_up(Codes x) {
  return _mm512_slli_epi16(x, kShift);
}

inline Ints multiply_bytes(Codes a, Ints b) { return _mm512_maddubs_epi16(a, b); }
inline Ints add_shorts(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
inline Ints sum_of_shorts(Ints x) { return _mm512_madd_epi16(x, _mm512_set1_epi16(1)); }
inline Codes magnitude(Codes x) { return _mm512_abs_epi8(x); }
// `x` with the signs of `signs`; what is below a zero of `signs` does not matter, its magnitude being zero.
inline Ints with_signs(Ints x, Codes signs) {
  return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(signs), _mm512_setzero_si512(), x);
}

#else

using Ints = __m256i;
using Codes = __m256i;

inline Ints splat_int(int32_t x) { return _mm256_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints multiply_ints(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
template <int kBits>
inline Ints shift_left(Ints x) {
  return _mm256_slli_epi32(x, kBits);
}
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints load_signed_bytes(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Ints load_unsigned_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Floats load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Codes load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_codes(uint8_t* p, Codes x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline Codes or_codes(Codes a, Codes b) { return _mm256_or_si256(a, b); }
// The bits of each byte from kShift on that `mask` keeps.
template <int kShift>
inline Codes bits_of(Codes x, uint8_t mask) {
  return _mm256_and_si256(_mm256_srli_epi16(x, kShift), _mm256_set1_epi8(static_cast<char>(mask)));
}
template <int kShift>
inline Codes shift_up(Codes x) {
  return _mm256_slli_epi16(x, kShift);
}

inline Ints multiply_bytes(Codes a, Ints b) { return _mm256_maddubs_epi16(a, b); }
inline Ints add_shorts(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
inline Ints sum_of_shorts(Ints x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }
inline Codes magnitude(Codes x) { return _mm256_abs_epi8(x); }
inline Ints with_signs(Ints x, Codes signs) { return _mm256_sign_epi8(x, signs); }

#endif

inline Ints splat_four(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return splat_int(four);
}

// sums + the products of kSteps * 4 codes, each at most kMaxCode, and as many x from -127 to 127. Exact, so the
// instruction set does not show in the result.
template <int kMaxCode, int kSteps>
inline Ints add_products(Ints sums, const Codes* codes, const int8_t* x) {
#if defined(__AVX512VNNI__)
  for (int step = 0; step < kSteps; ++step) sums = _mm512_dpbusd_epi32(sums, codes[step], splat_four(x + 4 * step));
  return sums;
#else
  if constexpr (kMaxCode > 127) {
    for (int step = 0; step < kSteps; ++step) {
      const Ints products =
          multiply_bytes(magnitude(codes[step]), with_signs(splat_four(x + 4 * step), codes[step]));
      sums = add_ints(sums, sum_of_shorts(products));
    }
    return sums;
  }
  // As many products as fit 16 bits are added there.
  constexpr int kStepsInShorts = 32767 / (2 * 127 * kMaxCode) < kSteps ? 32767 / (2 * 127 * kMaxCode) : kSteps;
  for (int first = 0; first < kSteps; first += kStepsInShorts) {
    Ints shorts = multiply_bytes(codes[first], splat_four(x + 4 * first));
    for (int step = first + 1; step < first + kStepsInShorts && step < kSteps; ++step) {
      shorts = add_shorts(shorts, multiply_bytes(codes[step], splat_four(x + 4 * step)));
    }
    sums = add_ints(sums, sum_of_shorts(shorts));
  }
  return sums;
#endif
}

}  // namespace pageloom
