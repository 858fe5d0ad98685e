// The gated activation of the feed-forward network, on vectors.
#pragma once

#include "simd.h"

namespace pageloom {

// The same numbers as bf16 holds them.
inline Floats rounded(Floats x) {
  alignas(64) bf16 halves[kLanes];
  store_bf16(halves, x);
  return load_bf16(halves);
}

// silu(gate) * up, not rounded; silu is rounded to bf16, as transformers does.
inline Floats silu_mul(Floats gate, Floats up) {
  return mul(rounded(div(gate, add(splat(1.0f), exponential(sub(zeros(), gate))))), up);
}

}  // namespace pageloom
