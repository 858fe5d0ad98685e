// Which ggml types have kernels, and which functions are a type's?

#include <utility>

#include "quant_format.h"
#include "quant_pack.h"
#include "quant_tile.h"

namespace pageloom {
namespace {

template <class Format, size_t... kRowsMinusOne>
void fill_multiply(QuantFormat& format, std::index_sequence<kRowsMinusOne...>) {
  ((format.multiply_tile[kRowsMinusOne + 1] = multiply_tile<Format, static_cast<int>(kRowsMinusOne) + 1>), ...);
}

template <class Format, class Block>
QuantFormat make_format() {
  QuantFormat format{};
  format.ggml_type = Block::kGgmlType;
  format.block_elements = Block::kElements;
  format.block_bytes = sizeof(Block);
  format.tile_bytes = tile_bytes<Format>;
  format.pack_lane = pack_lane<Format, Block>;
  format.unpack_lane = unpack_lane<Format>;
  fill_multiply<Format>(format, std::make_index_sequence<kGroupRows>{});
  return format;
}

}  // namespace

const QuantFormat* find_quant_format(int ggml_type) {
  static const QuantFormat formats[] = {
      make_format<Q4_0Cells, BlockQ4_0>(), make_format<Q4_1Cells, BlockQ4_1>(), make_format<Q8_0Cells, BlockQ8_0>(),
      make_format<Q4_KCells, BlockQ4_K>(), make_format<Q6_KCells, BlockQ6_K>(),
  };
  for (const QuantFormat& format : formats) {
    if (format.ggml_type == ggml_type) return &format;
  }
  return nullptr;
}

}  // namespace pageloom
