// How do ggml blocks become cells, and cells a row of numbers? Block layouts: ggml-common.h of ggml-org/ggml.
#pragma once

#include <cstring>

#include "quant_cells.h"

namespace pageloom {

struct BlockQ4_0 {
  static constexpr int kGgmlType = 2, kElements = 32;
  uint8_t scale[2];
  uint8_t codes[16];  // element i in the low half of byte i, element i + 16 in the high half
};
struct BlockQ4_1 {
  static constexpr int kGgmlType = 3, kElements = 32;
  uint8_t scale[2], minimum[2];
  uint8_t codes[16];  // as above
};
struct BlockQ8_0 {
  static constexpr int kGgmlType = 8, kElements = 32;
  uint8_t scale[2];
  int8_t codes[32];
};
struct BlockQ4_K {
  static constexpr int kGgmlType = 12, kElements = 256;
  uint8_t scale[2], minimum[2];
  uint8_t scales[12];        // six bits for each of the eight scales and minima
  uint8_t codes[4][32];      // blocks 2i in the low halves, 2i + 1 in the high ones
};
struct BlockQ6_K {
  static constexpr int kGgmlType = 14, kElements = 256;
  uint8_t low_codes[2][2][32];  // of each half: blocks 0 and 1 in the low halves, 2 and 3 in the high ones
  uint8_t high_codes[2][32];    // of each half: the upper two bits of blocks 0 to 3, from the lowest bits on
  int8_t scales[16];
  uint8_t scale[2];
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ6_K) == 210);

inline void put_half(uint8_t* halves, int lane, const uint8_t* half) { std::memcpy(halves + 2 * lane, half, 2); }

// Sixteen bytes that hold two elements each, or those of sixteen elements.
inline void put_sixteen(uint8_t* steps, int lane, const uint8_t* bytes) {
  for (int step = 0; step < 4; ++step) {
    std::memcpy(steps + step * kStepBytes + lane * kLaneBytes, bytes + step * kLaneBytes, kLaneBytes);
  }
}

// `codes` are below 16.
inline void put_nibbles(uint8_t* steps, int lane, const uint8_t* codes) {
  uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(codes[i] | codes[i + 16] << 4);
  put_sixteen(steps, lane, bytes);
}

inline void pack_head(Q4_0Cells, const BlockQ4_0&, int, uint8_t*) {}
inline void pack_cell(Q4_0Cells, const BlockQ4_0& block, int, int lane, uint8_t* cell) {
  put_half(cell, lane, block.scale);
  put_sixteen(cell + kHalfBytes, lane, block.codes);
}

inline void pack_head(Q4_1Cells, const BlockQ4_1&, int, uint8_t*) {}
inline void pack_cell(Q4_1Cells, const BlockQ4_1& block, int, int lane, uint8_t* cell) {
  put_half(cell, lane, block.scale);
  put_half(cell + kHalfBytes, lane, block.minimum);
  put_sixteen(cell + 2 * kHalfBytes, lane, block.codes);
}

inline void pack_head(Q8_0Cells, const BlockQ8_0&, int, uint8_t*) {}
inline void pack_cell(Q8_0Cells, const BlockQ8_0& block, int, int lane, uint8_t* cell) {
  put_half(cell, lane, block.scale);
  uint8_t codes[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) codes[i] = static_cast<uint8_t>(block.codes[i] + Q8_0Cells::kOffset);
  put_sixteen(cell + kHalfBytes, lane, codes);
  put_sixteen(cell + kHalfBytes + 4 * kStepBytes, lane, codes + 16);
}

inline void pack_head(Q4_KCells, const BlockQ4_K& block, int lane, uint8_t* head) {
  put_half(head, lane, block.scale);
  put_half(head + kHalfBytes, lane, block.minimum);
}
inline void pack_cell(Q4_KCells, const BlockQ4_K& block, int index, int lane, uint8_t* cell) {
  const uint8_t* const s = block.scales;
  const int upper = index - 4;
  cell[lane] = static_cast<uint8_t>(index < 4 ? s[index] & 0x3f : (s[8 + upper] & 0x0f) | (s[upper] >> 6) << 4);
  cell[kLanes + lane] =
      static_cast<uint8_t>(index < 4 ? s[4 + index] & 0x3f : s[8 + upper] >> 4 | (s[4 + upper] >> 6) << 4);
  uint8_t codes[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) codes[i] = block.codes[index / 2][i] >> (index % 2 * 4) & 0x0f;
  put_nibbles(cell + 2 * kLanes, lane, codes);
}

inline void pack_head(Q6_KCells, const BlockQ6_K& block, int lane, uint8_t* head) {
  put_half(head, lane, block.scale);
}
inline void pack_cell(Q6_KCells, const BlockQ6_K& block, int index, int lane, uint8_t* cell) {
  const int half = index / 4, quarter = index % 4;
  cell[lane] = static_cast<uint8_t>(block.scales[2 * index]);
  cell[kLanes + lane] = static_cast<uint8_t>(block.scales[2 * index + 1]);
  uint8_t codes[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) codes[i] = block.low_codes[half][quarter % 2][i] >> (quarter / 2 * 4) & 0x0f;
  put_nibbles(cell + 2 * kLanes, lane, codes);
  uint8_t* const high = cell + 2 * kLanes + kNibbleBytes + lane * kLaneBytes;
  for (int i = 0; i < kQuantBlock; ++i) {
    const int bits = block.high_codes[half][i] >> (2 * quarter) & 3;
    high[i / 16 * kStepBytes + i % 4] |= static_cast<uint8_t>(bits << (i / 4 % 4 * 2));
  }
}

// Puts one output's blocks into lane `lane` of a tile, which must be zero there.
template <class Format, class Block>
void pack_lane(const uint8_t* blocks, int64_t in_features, int lane, uint8_t* tile) {
  for (int64_t first = 0; first < in_features; first += Block::kElements) {
    Block block;
    std::memcpy(&block, blocks, sizeof block);
    blocks += sizeof block;
    pack_head(Format{}, block, lane, tile);
    tile += Format::kHeadBytes;
    for (int index = 0; index < Format::kHeadCells; ++index) {
      pack_cell(Format{}, block, index, lane, tile);
      tile += Format::kCellBytes;
    }
  }
}

// One lane, dequantized.
template <class Format>
void unpack_lane(const uint8_t* tile, int64_t in_features, int lane, bf16* out) {
  for_each_cell<Format>(tile, in_features, [&](int64_t, const uint8_t*, const Cell& cell) {
    alignas(64) uint8_t codes[kCellSteps * kStepBytes];
    alignas(64) float scales[2][kLanes], minima[kLanes];
    for (int step = 0; step < kCellSteps; ++step) store_codes(codes + step * kStepBytes, cell.codes[step]);
    for (int half = 0; half < 2; ++half) {
      store(scales[half], Format::kHasHalfScales ? mul(cell.scale, to_floats(cell.half_scales[half])) : cell.scale);
    }
    store(minima, Format::kHasMinimum ? cell.minimum : zeros());
    for (int i = 0; i < kQuantBlock; ++i) {
      const uint8_t code = codes[i / 4 * kStepBytes + lane * kLaneBytes + i % 4];
      // Codes of eight bits without an offset are signed.
      const bool is_signed = Format::kMaxCode > 127 && Format::kOffset == 0;
      const int value = is_signed ? static_cast<int8_t>(code) : code - Format::kOffset;
      *out++ = to_bf16(static_cast<float>(value) * scales[i / 16][lane] + minima[lane]);
    }
  });
}

}  // namespace pageloom
