// How do quantized weights lie, once packed? kLanes outputs are a tile; a cell is a tile's next 32 inputs: scales,
// then codes as [32 / 4][kLanes][4], so that a register holds four neighbouring inputs of every output. Nothing is
// rounded: a cell holds the numbers of the ggml blocks it was made of (ggml-common.h), in as many bits.
#pragma once

#include "quant_activations.h"
#include "quant_simd.h"

namespace pageloom {

constexpr int kCellSteps = kQuantBlock / 4;
constexpr int kLaneBytes = 4;
constexpr int kStepBytes = kLanes * kLaneBytes;
constexpr int kHalfBytes = kLanes * 2;  // one half-precision number for each output

// weight = (code - offset) * scale + minimum, for each output. The scale of a format with two scales in a block is
// `scale * half_scales[input / 16]`.
struct Cell {
  Codes codes[kCellSteps];
  Floats scale;
  Floats minimum;
  Ints half_scales[2];
};

// Steps 0 to 3 lie in the low halves of the bytes, 4 to 7 in the high ones.
inline void load_nibbles(const uint8_t* p, Codes* codes) {
  for (int step = 0; step < kCellSteps / 2; ++step) {
    const Codes both = load_codes(p + step * kStepBytes);
    codes[step] = bits_of<0>(both, 0x0f);
    codes[step + kCellSteps / 2] = bits_of<4>(both, 0x0f);
  }
}
constexpr int kNibbleBytes = kCellSteps / 2 * kStepBytes;

// A format says what a cell is (kCellBytes, load) and what precedes each kHeadCells of them (kHeadBytes, Head).
struct NoHead {
  explicit NoHead(const uint8_t*) {}
};

struct Q4_0Cells {
  static constexpr int kOffset = 8, kMaxCode = 15;
  static constexpr bool kHasMinimum = false, kHasHalfScales = false;
  static constexpr int kHeadCells = 1, kHeadBytes = 0, kCellBytes = kHalfBytes + kNibbleBytes;
  using Head = NoHead;
  static void load(const Head&, const uint8_t* p, Cell* cell) {
    cell->scale = load_halves(p);
    load_nibbles(p + kHalfBytes, cell->codes);
  }
};

struct Q4_1Cells {
  static constexpr int kOffset = 0, kMaxCode = 15;
  static constexpr bool kHasMinimum = true, kHasHalfScales = false;
  static constexpr int kHeadCells = 1, kHeadBytes = 0, kCellBytes = 2 * kHalfBytes + kNibbleBytes;
  using Head = NoHead;
  static void load(const Head&, const uint8_t* p, Cell* cell) {
    cell->scale = load_halves(p);
    cell->minimum = load_halves(p + kHalfBytes);
    load_nibbles(p + 2 * kHalfBytes, cell->codes);
  }
};

struct Q8_0Cells {
  static constexpr int kOffset = kHasUnsignedBytes ? 128 : 0, kMaxCode = 255;
  static constexpr bool kHasMinimum = false, kHasHalfScales = false;
  static constexpr int kHeadCells = 1, kHeadBytes = 0, kCellBytes = kHalfBytes + kCellSteps * kStepBytes;
  using Head = NoHead;
  static void load(const Head&, const uint8_t* p, Cell* cell) {
    cell->scale = load_halves(p);
    for (int step = 0; step < kCellSteps; ++step) cell->codes[step] = load_codes(p + kHalfBytes + step * kStepBytes);
  }
};

struct Q4_KCells {
  static constexpr int kOffset = 0, kMaxCode = 15;
  static constexpr bool kHasMinimum = true, kHasHalfScales = false;
  static constexpr int kHeadCells = 8, kHeadBytes = 2 * kHalfBytes, kCellBytes = 2 * kLanes + kNibbleBytes;
  struct Head {
    Floats scale, minus_minimum;
    explicit Head(const uint8_t* p)
        : scale(load_halves(p)), minus_minimum(sub(zeros(), load_halves(p + kHalfBytes))) {}
  };
  static void load(const Head& head, const uint8_t* p, Cell* cell) {
    cell->scale = mul(head.scale, to_floats(load_unsigned_bytes(p)));
    cell->minimum = mul(head.minus_minimum, to_floats(load_unsigned_bytes(p + kLanes)));
    load_nibbles(p + 2 * kLanes, cell->codes);
  }
};

struct Q6_KCells {
  static constexpr int kOffset = 32, kMaxCode = 63;
  static constexpr bool kHasMinimum = false, kHasHalfScales = true;
  static constexpr int kHeadCells = 8, kHeadBytes = kHalfBytes;
  static constexpr int kHighBytes = 2 * kStepBytes;
  static constexpr int kCellBytes = 2 * kLanes + kNibbleBytes + kHighBytes;
  struct Head {
    Floats scale;
    explicit Head(const uint8_t* p) : scale(load_halves(p)) {}
  };
  // The upper two bits of steps 0 to 3 lie in one register's bytes, from the lowest bits on; those of 4 to 7 in the
  // next one's.
  static void load(const Head& head, const uint8_t* p, Cell* cell) {
    cell->scale = head.scale;
    cell->half_scales[0] = load_signed_bytes(p);
    cell->half_scales[1] = load_signed_bytes(p + kLanes);
    load_nibbles(p + 2 * kLanes, cell->codes);
    for (int half = 0; half < 2; ++half) {
      const Codes high = load_codes(p + 2 * kLanes + kNibbleBytes + half * kStepBytes);
      Codes* const codes = cell->codes + half * kCellSteps / 2;
      codes[0] = or_codes(codes[0], shift_up<4>(bits_of<0>(high, 0x03)));
      codes[1] = or_codes(codes[1], shift_up<2>(bits_of<0>(high, 0x0c)));
      codes[2] = or_codes(codes[2], bits_of<0>(high, 0x30));
      codes[3] = or_codes(codes[3], bits_of<2>(high, 0x30));
    }
  }
};

template <class Format>
constexpr int64_t tile_bytes(int64_t in_features) {
  const int64_t num_cells = in_features / kQuantBlock;
  return num_cells / Format::kHeadCells * Format::kHeadBytes + num_cells * Format::kCellBytes;
}

// Calls `visit(index, next, cell)` for each cell of a tile, in order; `next` is where the one after it lies.
template <class Format, class Visit>
inline void for_each_cell(const uint8_t* tile, int64_t in_features, Visit&& visit) {
  const int64_t num_cells = in_features / kQuantBlock;
  for (int64_t first = 0; first < num_cells; first += Format::kHeadCells) {
    const typename Format::Head head(tile);
    tile += Format::kHeadBytes;
    for (int64_t index = first; index < first + Format::kHeadCells; ++index) {
      Cell cell;
      Format::load(head, tile, &cell);
      tile += Format::kCellBytes;
      visit(index, tile, cell);
    }
  }
}

}  // namespace pageloom
