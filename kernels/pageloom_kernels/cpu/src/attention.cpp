#include "attention_item.h"
#include "attention_plan.h"

namespace pageloom {
namespace {

// The parts of one KV head of some tokens, added up in the order of the context.
void merge_parts(const AttentionPlan& plan, const AttentionMerge& merge, int head, const AttentionLayer& layer,
                 float* scratch) {
  const int group = plan.group(), num_rows = merge.num_rows * group, head_dim = plan.shape.head_dim;
  const Partial total = partial_at(scratch, num_rows);
  clear(total, num_rows, head_dim);
  for (int i = merge.first_part; i < merge.end_part; ++i) {
    const AttentionPart& part = plan.parts[i];
    const int part_rows = part.num_rows * group;
    for (int span = 0; span < part.num_spans; ++span) {
      const int64_t index = int64_t{span} * plan.shape.num_kv_heads + head;
      float* memory = layer.partials + part.partials + index * partial_floats(part_rows, head_dim);
      const int first = (merge.first_row - part.first_row) * group;
      accumulate(total, rows_from(partial_at(memory, part_rows), first, head_dim), num_rows, head_dim);
    }
  }
  write_outputs(plan, layer, merge.first_row, merge.num_rows, head, total);
}

}  // namespace

void attend(ThreadPool& pool, const AttentionPlan& plan, const bf16* query, int64_t query_stride, const bf16* kv,
            bf16* output, int64_t output_stride, void* scratch) {
  float* partials = static_cast<float*>(scratch);
  const AttentionLayer layer{query, query_stride, kv, output, output_stride, partials};
  const auto thread_scratch = [&](int thread) { return partials + plan.partial_floats + thread * plan.thread_floats; };
  pool.run(static_cast<int>(plan.items.size()), [&](int item, int thread) {
    ItemAttention(plan, plan.items[item], layer, thread_scratch(thread)).run();
  });
  const int num_heads = plan.shape.num_kv_heads;
  pool.run(static_cast<int>(plan.merges.size()) * num_heads, [&](int item, int thread) {
    merge_parts(plan, plan.merges[item / num_heads], item % num_heads, layer, thread_scratch(thread));
  });
}

}  // namespace pageloom
