// How does a thread do one item of attention? Span by span, and in each span the item's KV heads.
#pragma once

#include "attention_plan.h"
#include "attention_span.h"

namespace pageloom {

struct AttentionLayer {
  const bf16* query;
  int64_t query_stride;
  const bf16* kv;
  bf16* output;
  int64_t output_stride;
  float* partials;
};

// What is in a thread's scratch while it does an item, in floats: the queries of all of the item's heads, and if it
// keeps no partials, the total of each head and one span's part.
struct ItemMemory {
  int64_t query_floats, partial_floats, num_heads;
  bool keeps_partials;

  ItemMemory(const AttentionShape& shape, const AttentionItem& item)
      : num_heads(item.end_head - item.first_head), keeps_partials(item.partials >= 0) {
    const int num_rows = item.num_rows * (shape.num_heads / shape.num_kv_heads);
    constexpr int64_t kAlignment = kScratchAlignment / sizeof(float);
    const int64_t query_bytes = int64_t{num_rows} * shape.head_dim * static_cast<int64_t>(sizeof(Factor));
    query_floats = (query_bytes / static_cast<int64_t>(sizeof(float)) + kAlignment - 1) / kAlignment * kAlignment;
    partial_floats = pageloom::partial_floats(num_rows, shape.head_dim);
  }
  int64_t totals() const { return num_heads * query_floats; }
  int64_t part() const { return totals() + num_heads * partial_floats; }
  int64_t end() const { return keeps_partials ? totals() : part() + partial_floats; }
};

class ItemAttention {
 public:
  ItemAttention(const AttentionPlan& plan, const AttentionItem& item, const AttentionLayer& layer, float* scratch)
      : plan_(plan),
        item_(item),
        layer_(layer),
        scratch_(scratch),
        memory_(plan.shape, item),
        rows_(plan.rows.data() + item.first_row),
        num_rows_(item.num_rows * plan.group()),
        head_dim_(plan.shape.head_dim),
        arithmetic_{head_dim_, plan.shape.scale * 1.44269504f} {}

  void run() {
    for (int head = item_.first_head; head < item_.end_head; ++head) {
      gather_queries(head);
      if (!memory_.keeps_partials) add_parts(head);
    }
    for (int span = item_.first_span; span < item_.end_span; ++span) {
      fetch(span);
      for (int head = item_.first_head; head < item_.end_head; ++head) {
        attend(span, head);
        if (!memory_.keeps_partials) accumulate(total(head), part(span, head), num_rows_, head_dim_);
      }
    }
    for (int head = item_.first_head; head < item_.end_head; ++head) {
      if (!memory_.keeps_partials) write_output(head);
    }
  }

 private:
  Factor* queries(int head) const {
    return reinterpret_cast<Factor*>(scratch_ + (head - item_.first_head) * memory_.query_floats);
  }
  Partial total(int head) const {
    const int64_t index = head - item_.first_head;
    return partial_at(scratch_ + memory_.totals() + index * memory_.partial_floats, num_rows_);
  }
  Partial part(int span, int head) const {
    if (!memory_.keeps_partials) return partial_at(scratch_ + memory_.part(), num_rows_);
    const int64_t index = int64_t{span - item_.first_span} * plan_.shape.num_kv_heads + head;
    return partial_at(layer_.partials + item_.partials + index * memory_.partial_floats, num_rows_);
  }

  void gather_queries(int head) {
    const int64_t elements = int64_t{plan_.group()} * head_dim_;
    for (int i = 0; i < item_.num_rows; ++i) {
      const bf16* query = layer_.query + rows_[i].query_row * layer_.query_stride;
      copy_factors(queries(head) + i * elements, query + head * elements, elements);
    }
  }

  void add_parts(int head) {
    clear(total(head), num_rows_, head_dim_);
    for (int i = item_.first_part; i < item_.end_part; ++i) {
      const AttentionPart& part = plan_.parts[i];
      const int part_rows = part.num_rows * plan_.group(), first = (item_.first_row - part.first_row) * plan_.group();
      for (int span = 0; span < part.num_spans; ++span) {
        const int64_t index = int64_t{span} * plan_.shape.num_kv_heads + head;
        float* memory = layer_.partials + part.partials + index * partial_floats(part_rows, head_dim_);
        accumulate(total(head), rows_from(partial_at(memory, part_rows), first, head_dim_), num_rows_, head_dim_);
      }
    }
  }

  // Tokens of the span that row i sees.
  int num_tokens(int span, int i) const { return std::min(rows_[i].num_visible - span * kSpanTokens, kSpanTokens); }
  int num_pages(int span) const {
    return (num_tokens(span, item_.num_rows - 1) + kPageTokens - 1) / kPageTokens;
  }
  const bf16* page(int span, int index) const {
    const int token = span * kSpanTokens + index * kPageTokens;
    const int64_t first_page = int64_t{item_.blocks[token / plan_.block_size]} * (plan_.block_size / kPageTokens);
    const int64_t page = first_page + token % plan_.block_size / kPageTokens;
    return layer_.kv + page * page_elements(plan_.shape.num_kv_heads, head_dim_);
  }

  // Reads all of the span before anything is computed: only loads that do not wait for each other use all of the
  // memory's bandwidth.
  void fetch(int span) const {
    const int64_t first = head_offset(item_.first_head, head_dim_), end = head_offset(item_.end_head, head_dim_);
    constexpr int64_t kLine = 64 / sizeof(bf16);
    for (int p = 0; p < num_pages(span); ++p) {
      const bf16* memory = page(span, p);
      Pairs any[4] = {};
      for (int64_t i = first; i < end; i += 4 * kLine) {
        for (int j = 0; j < 4; ++j) any[j] |= load_pairs(memory + i + j * kLine);
      }
      // As if they were used, or the compiler would leave them out.
      asm volatile("" ::"v"(any[0] | any[1] | any[2] | any[3]));
    }
    if (span + 1 == item_.end_span) return;
    // Some lines of the next span for the processor's own prefetcher, and its addresses for the TLB.
    constexpr int64_t kDistance = 1024 / sizeof(bf16);
    for (int p = 0; p < num_pages(span + 1); ++p) {
      const bf16* memory = page(span + 1, p);
      for (int64_t i = first; i < end; i += kDistance) _mm_prefetch(memory + i, _MM_HINT_T1);
    }
  }

  void attend(int span, int head) const {
    const Partial out = part(span, head);
    Span head_span{};
    for (int p = 0; p < num_pages(span); ++p) head_span.pages[p] = page(span, p) + head_offset(head, head_dim_);
    head_span.num_tokens = num_tokens(span, 0);
    if (head_span.num_tokens == kSpanTokens) return arithmetic_.attend(queries(head), num_rows_, head_span, out);
    // Its tokens end in this span: each sees another part of it, with all heads of the group.
    for (int i = 0; i < item_.num_rows; ++i) {
      const int row = i * plan_.group();
      head_span.num_tokens = num_tokens(span, i);
      arithmetic_.attend(queries(head) + int64_t{row} * head_dim_, plan_.group(), head_span,
                         rows_from(out, row, head_dim_));
    }
  }

  void write_output(int head) const {
    const int group = plan_.group();
    for (int i = 0; i < item_.num_rows; ++i) {
      bf16* output = layer_.output + rows_[i].query_row * layer_.output_stride;
      finish(rows_from(total(head), i * group, head_dim_), group, head_dim_, output + head * group * head_dim_);
    }
  }

  const AttentionPlan& plan_;
  const AttentionItem& item_;
  const AttentionLayer& layer_;
  float* const scratch_;
  const ItemMemory memory_;
  const AttentionRow* const rows_;
  const int num_rows_, head_dim_;
  const SpanAttention arithmetic_;
};

}  // namespace pageloom
