// How does this library's instruction set compute? Vectors of float and of bf16 pairs, as wide as its registers.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "kernels.h"

namespace pageloom {

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// To the nearest, ties to even; a NaN stays one.
inline bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<bf16>((bits >> 16) | 0x40);
  return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

constexpr int kLanes = 16;
using Floats = __m512;
using Pairs = __m512i;  // kLanes times two neighbouring bf16, the first in the low half

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats splat(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats maximum(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats round_to_integer(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }
// x * 2^n for integers n.
inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
// The first `count` lanes of x, and `other` in the rest; 0 <= count <= kLanes.
inline Floats first_lanes(int count, Floats x, Floats other) {
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>((1u << count) - 1), x);
}

inline Floats load_bf16(const bf16* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

inline Pairs load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
inline void store_pairs(bf16* p, Pairs x) { _mm512_storeu_si512(p, x); }
inline Pairs splat_pair(uint32_t pair) { return _mm512_set1_epi32(static_cast<int>(pair)); }
inline Floats even_of(Pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
inline Floats odd_of(Pairs x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

#if defined(__AVX512BF16__)

inline __m256i round_lanes(Floats x) { return std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
inline Floats dot_pairs(Floats sums, Pairs a, Pairs b) {
  return _mm512_dpbf16_ps(sums, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
}

#else

inline __m256i round_lanes(Floats x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}
// As VDPBF16PS does, the odd products first.
inline Floats dot_pairs(Floats sums, Pairs a, Pairs b) {
  return multiply_add(even_of(a), even_of(b), multiply_add(odd_of(a), odd_of(b), sums));
}

#endif

inline void store_bf16(bf16* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_lanes(x));
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int kLanes = 8;
using Floats = __m256;
using Pairs = __m256i;  // kLanes times two neighbouring bf16, the first in the low half

inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats splat(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats maximum(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats round_to_integer(Floats x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline float sum(Floats x) {
  __m128 low = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  low = _mm_add_ps(low, _mm_movehl_ps(low, low));
  return _mm_cvtss_f32(_mm_add_ss(low, _mm_movehdup_ps(low)));
}
inline float largest(Floats x) {
  __m128 low = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  low = _mm_max_ps(low, _mm_movehl_ps(low, low));
  return _mm_cvtss_f32(_mm_max_ss(low, _mm_movehdup_ps(low)));
}
// x * 2^n for integers n from -126 to 127.
inline Floats scale_by_power(Floats x, Floats n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// The first `count` lanes of x, and `other` in the rest; 0 <= count <= kLanes.
inline Floats first_lanes(int count, Floats x, Floats other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(kept));
}

inline Floats load_bf16(const bf16* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

inline Pairs load_pairs(const bf16* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_pairs(bf16* p, Pairs x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline Pairs splat_pair(uint32_t pair) { return _mm256_set1_epi32(static_cast<int>(pair)); }
inline Floats even_of(Pairs x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline Floats odd_of(Pairs x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
// As VDPBF16PS does, the odd products first.
inline Floats dot_pairs(Floats sums, Pairs a, Pairs b) {
  return multiply_add(even_of(a), even_of(b), multiply_add(odd_of(a), odd_of(b), sums));
}

inline __m128i round_lanes(Floats x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
  const __m256i halves = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}
inline void store_bf16(bf16* p, Floats x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_lanes(x)); }

#else
#error "no kernels for this instruction set"
#endif

// Two neighbouring elements as splat_pair takes them.
inline uint32_t pair_at(const bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pair;
}

// e^x within 2 ulp (Cephes' expf); below -87 the result is that of -87, about 1e-38, and above 88 that of 88.
inline Floats exponential(Floats x) {
  x = minimum(maximum(x, splat(-87.0f)), splat(88.0f));
  const Floats n = round_to_integer(mul(x, splat(1.44269504f)));
  Floats f = multiply_add(n, splat(-0.693359375f), x);
  f = multiply_add(n, splat(2.12194440e-4f), f);
  Floats p = splat(1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = multiply_add(p, f, splat(coefficient));
  }
  p = multiply_add(mul(p, f), f, add(f, splat(1.0f)));
  return scale_by_power(p, n);
}

}  // namespace pageloom
