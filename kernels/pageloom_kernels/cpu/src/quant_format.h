// What does the library do with one ggml type?
#pragma once

#include "quant_activations.h"
#include "simd.h"

namespace pageloom {

struct QuantFormat {
  int ggml_type;
  int block_elements;  // of a ggml block
  int block_bytes;
  int64_t (*tile_bytes)(int64_t in_features);
  // Puts one output's ggml blocks into lane `lane` of a tile, which must be zero there.
  void (*pack_lane)(const uint8_t* blocks, int64_t in_features, int lane, uint8_t* tile);
  // One lane, dequantized.
  void (*unpack_lane)(const uint8_t* tile, int64_t in_features, int lane, bf16* out);
  // A tile times a group of quantized rows: a vector of results for each. By the number of rows, from 1 on.
  void (*multiply_tile[kGroupRows + 1])(const uint8_t* tile, int64_t in_features, const uint8_t* group,
                                        Floats* results);
};

// nullptr: no kernel for this type.
const QuantFormat* find_quant_format(int ggml_type);

}  // namespace pageloom
