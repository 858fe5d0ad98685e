// Who attends to what in a step? The work of attention, cut into items for threads; every layer of the step does it.
#pragma once

#include <vector>

#include "kernels.h"

namespace pageloom {

// A query token, and how many tokens of its context it sees.
struct AttentionRow {
  int query_row, num_visible;
};

// Tokens that see the same blocks, over consecutive spans of their context, for some of the KV heads.
struct AttentionItem {
  int first_row, num_rows;  // of AttentionPlan::rows; by rising num_visible, all in or after the last span
  const int32_t* blocks;    // from the start of the context
  int first_span, end_span;
  int first_head, end_head;
  int64_t partials;  // of the first span and KV head 0, see AttentionPart; negative: the item is all there is
};

// The partials of consecutive spans of some tokens: by span and KV head, each of `group * num_rows` rows, in floats
// from the start of the scratch.
struct AttentionPart {
  int64_t partials;
  int first_row, num_rows;  // of AttentionPlan::rows
  int num_spans;
};

// Tokens whose context went to more than one item: their parts, from the context's start to its end.
struct AttentionMerge {
  int first_row, num_rows;  // of AttentionPlan::rows
  int first_part, end_part;
};

struct AttentionPlan {
  AttentionShape shape;
  int block_size;
  int num_threads;
  std::vector<AttentionRow> rows;
  std::vector<AttentionItem> items;
  std::vector<AttentionPart> parts;
  std::vector<AttentionMerge> merges;
  int64_t partial_floats = 0;  // of the scratch's start
  int64_t thread_floats = 0;   // of scratch for each thread, after that

  int group() const { return shape.num_heads / shape.num_kv_heads; }
  size_t scratch_bytes() const {
    return sizeof(float) * static_cast<size_t>(partial_floats + num_threads * thread_floats);
  }
};

// The plan refers to the batch's block tables; the other arrays are not needed afterwards. It says who computes what
// and never changes what is computed: so it may depend on all of the batch and on the number of threads.
AttentionPlan plan_attention(const AttentionShape& shape, const AttentionBatch& batch, int num_threads);

// One layer of the step. See `attention` in kernels.h.
void attend(ThreadPool& pool, const AttentionPlan& plan, const bf16* query, int64_t query_stride, const bf16* kv,
            bf16* output, int64_t output_stride, void* scratch);

}  // namespace pageloom
