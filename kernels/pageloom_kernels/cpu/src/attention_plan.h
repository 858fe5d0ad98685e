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
  int first_row, num_rows;  // of AttentionPlan::rows; by rising num_visible, none of which ends before the last span
  const int32_t* blocks;    // from the start of the context
  int first_span, end_span;
  int first_head, end_head;
  // Where the spans' parts go, as AttentionPart::partials. Negative: the item is the end of the tokens' context, and
  // writes their outputs; its `parts` are all before its spans.
  int64_t partials;
  int first_part, end_part;  // of AttentionPlan::parts
};

// What some items leave for others: the partials of consecutive spans of some tokens, by span and KV head, each of
// `group * num_rows` rows.
struct AttentionPart {
  int64_t partials;         // of the first span and KV head 0, in floats from the start of the scratch
  int first_row, num_rows;  // of AttentionPlan::rows
  int num_spans;
};

struct AttentionPlan {
  AttentionShape shape;
  int block_size;
  int num_threads;
  std::vector<AttentionRow> rows;
  std::vector<AttentionPart> parts;
  std::vector<AttentionItem> items;
  int first_waiting = 0;       // of the items from here on, which wait for the parts that those before it leave
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

// Causal attention over one layer's blocks `kv`, which hold this step's keys and values already. `query` and `output`
// are [rows, num_heads * head_dim] with the given distance between rows. What a page holds beyond its sequence's
// length may be anything, NaN included, and reaches no output; a row without context gives zeros.
//
// The bits of an output depend on its query and context alone: on no other row, whether it is a decode or part of a
// chunk, and not on the number of threads. Sequences whose block tables begin alike read what they share once.
void attend(ThreadPool& pool, const AttentionPlan& plan, const bf16* query, int64_t query_stride, const bf16* kv,
            bf16* output, int64_t output_stride, void* scratch);

}  // namespace pageloom
