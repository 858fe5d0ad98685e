// What do the kernels of this library agree on? Types, the layout of a KV block, and the entry points that are not
// in a header of their own. Every source file is compiled once for each instruction set, into a library of its own:
// simd.h is the one place that knows which.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thread_pool.h"

namespace pageloom {

using bf16 = uint16_t;

// Scratch memory that a kernel is handed starts at a multiple of this.
constexpr size_t kScratchAlignment = 64;

// ---- KV memory
// A block holds its tokens in pages of 32, one after the other; a page holds all KV heads, one after the other; a
// head's part of a page is its keys, then its values, kPageTokens * head_dim elements each. Both are stored so that
// a product of bf16 pairs needs no horizontal sum: keys as [token / 16][dim / 2][token % 16][dim % 2], values as
// [token / 2][dim][token % 2].
constexpr int kPageTokens = 32;

inline int64_t page_elements(int num_kv_heads, int head_dim) {
  return int64_t{2} * kPageTokens * num_kv_heads * head_dim;
}
// Where the keys of a head start in its page; its values follow after kPageTokens * head_dim.
inline int64_t head_offset(int kv_head, int head_dim) { return int64_t{2} * kPageTokens * kv_head * head_dim; }
inline int64_t key_offset(int token, int dim, int head_dim) {
  return (int64_t{token / 16} * (head_dim / 2) + dim / 2) * 32 + (token % 16) * 2 + dim % 2;
}
inline int64_t value_offset(int token, int dim, int head_dim) {
  return (int64_t{token / 2} * head_dim + dim) * 2 + token % 2;
}

// ---- Attention (attention_plan.h)
struct AttentionShape {
  int num_heads, num_kv_heads, head_dim;  // head_dim: a multiple of 16; num_heads: a multiple of num_kv_heads
  float scale;
};

// One step; all arrays by sequence, in any mixture of single tokens and chunks of prompts.
struct AttentionBatch {
  int num_seqs;
  const int32_t* query_start;   // [num_seqs + 1] rows of the queries
  const int32_t* seq_lens;      // [num_seqs] tokens in the context, this step's included
  const int32_t* block_tables;  // [num_seqs, table_stride] block ids
  int table_stride;
  int block_size;  // a multiple of kPageTokens
};

}  // namespace pageloom
