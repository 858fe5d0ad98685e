// Which tokens of a step are attended to together? Tiles of neighbouring tokens, and the context tiles share.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "attention_span.h"
#include "kernels.h"

namespace pageloom {

// Consecutive tokens of one sequence, the last of whose spans is the same.
struct AttentionTile {
  int query_row, num_rows;
  int num_visible;  // by the first of the tokens; 0 without a context
  const int32_t* blocks;

  int num_spans() const { return (num_visible + num_rows - 1 + kSpanTokens - 1) / kSpanTokens; }
  // Of spans that all of the tokens see all of.
  int num_whole_spans() const { return num_visible / kSpanTokens; }
  // Of blocks that hold whole spans.
  int num_whole_blocks(int block_size) const {
    return (num_whole_spans() * kSpanTokens + block_size - 1) / block_size;
  }
};

// The tokens of the sequence `seq`. Tiles end at multiples of a power of two, and therefore with a span or inside it.
inline void cut_into_tiles(const AttentionBatch& batch, int seq, int most_rows, std::vector<AttentionTile>& tiles) {
  const int alignment = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(most_rows, kSpanTokens))));
  const int first = batch.query_start[seq], end = batch.query_start[seq + 1];
  const int32_t* blocks = batch.block_tables + int64_t{seq} * batch.table_stride;
  for (int row = first; row < end;) {
    const int position = std::max(batch.seq_lens[seq] - (end - row), -1);
    const int rows = position < 0 ? 1 : std::min(end - row, alignment - position % alignment);
    tiles.push_back({row, rows, position + 1, blocks});
    row += rows;
  }
}

// An order in which tiles with blocks in common are neighbours.
inline bool shares_before(const AttentionTile& a, const AttentionTile& b, int block_size) {
  return std::lexicographical_compare(a.blocks, a.blocks + a.num_whole_blocks(block_size), b.blocks,
                                      b.blocks + b.num_whole_blocks(block_size));
}

// How many whole spans, from the context's start, two tiles have in common.
inline int num_common_spans(const AttentionTile& a, const AttentionTile& b, int block_size) {
  const int spans = std::min(a.num_whole_spans(), b.num_whole_spans());
  const int blocks = std::min(a.num_whole_blocks(block_size), b.num_whole_blocks(block_size));
  const auto differ = std::mismatch(a.blocks, a.blocks + blocks, b.blocks);
  return static_cast<int>(std::min<int64_t>(spans, (differ.first - a.blocks) * block_size / kSpanTokens));
}

}  // namespace pageloom
