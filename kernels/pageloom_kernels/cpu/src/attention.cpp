#include "attention_item.h"
#include "attention_plan.h"

namespace pageloom {

void attend(ThreadPool& pool, const AttentionPlan& plan, const bf16* query, int64_t query_stride, const bf16* kv,
            bf16* output, int64_t output_stride, void* scratch) {
  float* partials = static_cast<float*>(scratch);
  const AttentionLayer layer{query, query_stride, kv, output, output_stride, partials};
  const auto run = [&](int first, int end) {
    pool.run(end - first, [&](int index, int thread) {
      float* memory = partials + plan.partial_floats + thread * plan.thread_floats;
      ItemAttention(plan, plan.items[first + index], layer, memory).run();
    });
  };
  run(0, plan.first_waiting);
  run(plan.first_waiting, static_cast<int>(plan.items.size()));
}

}  // namespace pageloom
