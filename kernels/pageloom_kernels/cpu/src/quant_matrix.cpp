#include "quant_matrix.h"

#include <cstring>

#include "quant_format.h"

namespace pageloom {

bool quant_supports(int ggml_type, int64_t in_features) {
  const QuantFormat* format = find_quant_format(ggml_type);
  return format != nullptr && in_features % format->block_elements == 0;
}

void quant_append(ThreadPool& pool, Arena& arena, QuantMatrix& matrix, int ggml_type, const void* blocks,
                  int64_t num_outputs) {
  const QuantFormat* format = find_quant_format(ggml_type);
  const int64_t num_tiles = (num_outputs + kLanes - 1) / kLanes;
  const int64_t tile_bytes = format->tile_bytes(matrix.in_features);
  const int64_t row_bytes = matrix.in_features / format->block_elements * format->block_bytes;
  auto* tiles = static_cast<uint8_t*>(arena.allocate(static_cast<size_t>(num_tiles * tile_bytes)));
  pool.run(static_cast<int>(num_tiles), [&](int tile, int) {
    uint8_t* bytes = tiles + tile * tile_bytes;
    std::memset(bytes, 0, static_cast<size_t>(tile_bytes));
    const int64_t first = int64_t{tile} * kLanes;
    for (int lane = 0; lane < kLanes && first + lane < num_outputs; ++lane) {
      const uint8_t* row = static_cast<const uint8_t*>(blocks) + (first + lane) * row_bytes;
      format->pack_lane(row, matrix.in_features, lane, bytes);
    }
  });
  matrix.parts.push_back({format, matrix.out_features, num_outputs, num_tiles, tile_bytes, tiles});
  matrix.out_features += num_outputs;
}

void quant_row(const QuantMatrix& matrix, int64_t row, bf16* out) {
  for (const QuantPart& part : matrix.parts) {
    const int64_t index = row - part.first_output;
    if (index >= part.num_outputs) continue;
    const uint8_t* tile = part.tiles + index / kLanes * part.tile_bytes;
    part.format->unpack_lane(tile, matrix.in_features, static_cast<int>(index % kLanes), out);
    return;
  }
}

}  // namespace pageloom
