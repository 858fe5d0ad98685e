// How does a thread do one item of attention? Span by span, and the item's KV heads in each.
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

// What an item needs while it is computed, all of it in floats: the queries of all its heads, and where no partials
// are kept, the span's and the sums of all heads.
inline int64_t query_floats(int num_rows, int head_dim) { return (int64_t{num_rows} * head_dim + 31) / 32 * 16; }
inline int64_t item_floats(const AttentionShape& shape, const AttentionItem& item) {
  const int num_rows = item.num_rows * (shape.num_heads / shape.num_kv_heads);
  const int num_heads = item.end_head - item.first_head;
  const int64_t queries = num_heads * query_floats(num_rows, shape.head_dim);
  return queries + (item.partials < 0 ? (num_heads + 1) * partial_floats(num_rows, shape.head_dim) : 0);
}

class ItemAttention {
 public:
  ItemAttention(const AttentionPlan& plan, const AttentionItem& item, const AttentionLayer& layer, float* scratch)
      : plan_(plan), item_(item), layer_(layer), rows_(plan.rows.data() + item.first_row), head_dim_(plan.shape.head_dim),
        num_rows_(item.num_rows * plan.group()), queries_(scratch),
        totals_(scratch + (item.end_head - item.first_head) * query_floats(num_rows_, head_dim_)),
        part_floats_(partial_floats(num_rows_, head_dim_)) {}

  void run() {
    gather_queries();
    if (!keeps_partials()) {
      for (int head = item_.first_head; head < item_.end_head; ++head) clear(total(head), num_rows_, head_dim_);
    }
    for (int span = item_.first_span; span < item_.end_span; ++span) attend(span);
    if (!keeps_partials()) {
      for (int head = item_.first_head; head < item_.end_head; ++head) write_output(head);
    }
  }

 private:
  bool keeps_partials() const { return item_.partials >= 0; }

  bf16* queries(int head) const {
    return reinterpret_cast<bf16*>(queries_ + (head - item_.first_head) * query_floats(num_rows_, head_dim_));
  }
  Partial total(int head) const {
    return partial_at(totals_ + (head - item_.first_head) * part_floats_, num_rows_);
  }
  Partial part(int span, int head) const {
    float* memory = totals_ + (item_.end_head - item_.first_head) * part_floats_;
    if (keeps_partials()) {
      const int64_t index = int64_t{span - item_.first_span} * plan_.shape.num_kv_heads + head;
      memory = layer_.partials + item_.partials + index * part_floats_;
    }
    return partial_at(memory, num_rows_);
  }

  void gather_queries() {
    const int64_t group_elements = int64_t{plan_.group()} * head_dim_;
    for (int head = item_.first_head; head < item_.end_head; ++head) {
      for (int row = 0; row < item_.num_rows; ++row) {
        std::memcpy(queries(head) + row * group_elements,
                    layer_.query + rows_[row].query_row * layer_.query_stride + head * group_elements,
                    sizeof(bf16) * group_elements);
      }
    }
  }

  const bf16* page(int span, int index) const {
    const int token = span * kSpanTokens + index * kPageTokens;
    const int64_t pages_per_block = plan_.block_size / kPageTokens;
    const int64_t number = item_.blocks[token / plan_.block_size] * pages_per_block +
                           token % plan_.block_size / kPageTokens;
    return layer_.kv + number * page_elements(plan_.shape.num_kv_heads, head_dim_);
  }

  void attend(int span) {
    const int first_token = span * kSpanTokens;
    const int num_tokens = std::min(rows_[item_.num_rows - 1].num_visible - first_token, kSpanTokens);
    const int num_pages = (num_tokens + kPageTokens - 1) / kPageTokens;
    const bf16* pages[kSpanPages];
    for (int p = 0; p < num_pages; ++p) {
      pages[p] = page(span, p);
#ifdef TOUCH
      touch(pages[p] + head_offset(item_.first_head, head_dim_), head_offset(item_.end_head - item_.first_head, head_dim_));
#endif
    }
#ifdef WARM
    if (span + 1 < item_.end_span) {
      for (int p = 0; p < kSpanPages; ++p) {
        const bf16* next = page(span + 1, p);
        const int64_t n = head_offset(item_.end_head - item_.first_head, head_dim_);
        next += head_offset(item_.first_head, head_dim_);
        for (int64_t i = 0; i < n; i += WARM) _mm_prefetch((const char*)(next + i), _MM_HINT_T1);
      }
    }
#endif
    for (int head = item_.first_head; head < item_.end_head; ++head) {
      SpanPages span_pages{};
      for (int p = 0; p < num_pages; ++p) span_pages.pages[p] = pages[p] + head_offset(head, head_dim_);
      attend(head, first_token, span_pages, part(span, head));
    }
  }

#ifdef TOUCH
  static void touch(const bf16* p, int64_t n) {
#if TOUCH == 1
    __m512i x0 = _mm512_setzero_si512(), x1 = x0, x2 = x0, x3 = x0;
    for (int64_t i = 0; i < n; i += 128) {
      x0 = _mm512_xor_si512(x0, _mm512_loadu_si512(p + i));
      x1 = _mm512_xor_si512(x1, _mm512_loadu_si512(p + i + 32));
      x2 = _mm512_xor_si512(x2, _mm512_loadu_si512(p + i + 64));
      x3 = _mm512_xor_si512(x3, _mm512_loadu_si512(p + i + 96));
    }
    __m512i x = _mm512_xor_si512(_mm512_xor_si512(x0, x1), _mm512_xor_si512(x2, x3));
    asm volatile("" ::"v"(x));
#else
    for (int64_t i = 0; i < n; i += 32) _mm_prefetch((const char*)(p + i), TOUCH == 2 ? _MM_HINT_T0 : _MM_HINT_T1);
#endif
  }
#endif

  void attend(int head, int first_token, const SpanPages& pages, const Partial& out) {
    SpanTask task{kSpanTokens, head_dim_, plan_.shape.scale * 1.44269504f};
    if (rows_[0].num_visible - first_token >= kSpanTokens) {
      attend_span(queries(head), num_rows_, pages, task, out);
    } else {
      // Tokens of the tile that end in this span see different parts of it.
      for (int row = 0; row < item_.num_rows; ++row) {
        const int first = row * plan_.group();
        task.num_tokens = std::min(rows_[row].num_visible - first_token, kSpanTokens);
        attend_span(queries(head) + int64_t{first} * head_dim_, plan_.group(), pages, task,
                    rows_from(out, first, head_dim_));
      }
    }
    if (!keeps_partials()) accumulate(total(head), out, num_rows_, head_dim_);
  }

  void write_output(int head) {
    for (int row = 0; row < item_.num_rows; ++row) {
      finish(rows_from(total(head), row * plan_.group(), head_dim_), plan_.group(), head_dim_,
             layer_.output + rows_[row].query_row * layer_.output_stride + int64_t{head} * plan_.group() * head_dim_);
    }
  }

  const AttentionPlan& plan_;
  const AttentionItem& item_;
  const AttentionLayer& layer_;
  const AttentionRow* rows_;
  const int head_dim_, num_rows_;
  float* queries_;
  float* totals_;
  const int64_t part_floats_;
};

}  // namespace pageloom
