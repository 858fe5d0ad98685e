// What do rows of queries take from one span of their context? The arithmetic of attention, for one KV head.
//
// A row's bits depend on nothing but the row and what it sees of the span: each of its sums has one order, whatever
// rows are computed beside it. So decodes, chunks of prompts and shared prefixes all come here.
#pragma once

#include "attention_partial.h"
#include "attention_products.h"

namespace pageloom {

constexpr int kSpanPages = 2;
constexpr int kSpanTokens = kSpanPages * kPageTokens;

struct Span {
  const bf16* pages[kSpanPages];  // the KV head's part of each that has a visible token
  int num_tokens;                 // visible ones, from the first; at least 1
};

struct SpanAttention {
  int head_dim;
  float scale_log2;  // of a product of query and key, to a score in units of log2

  // Rows of queries [num_rows, head_dim]; all see the same tokens.
  void attend(const Factor* queries, int num_rows, const Span& span, const Partial& out) const {
    // Evenly, because few rows at a time wait for each other's sums.
    for (int row = 0, rounds = (num_rows + kRegisterRows - 1) / kRegisterRows; rounds > 0; --rounds) {
      const int rows = (num_rows - row) / rounds;
      with_rows(rows, [&]<int kRows>() {
        attend_rows<kRows>(queries + int64_t{row} * head_dim, span, rows_from(out, row, head_dim));
      });
      row += rows;
    }
  }

 private:
  template <int kRows>
  void attend_rows(const Factor* queries, const Span& span, const Partial& out) const {
    alignas(64) float scores[kRows][kSpanTokens];
    alignas(64) Factor weights[kRows][kSpanTokens];
    constexpr int kPageVectors = kPageTokens / kLanes;
    for (int token = 0; token < span.num_tokens;) {
      if (kRegisterVectors > kPageVectors && token + kPageTokens < span.num_tokens) {
        score<kRows, kRegisterVectors>(queries, span, token, scores[0]);
        token += kRegisterVectors * kLanes;
      } else {
        score<kRows, kPageVectors>(queries, span, token, scores[0]);
        token += kPageTokens;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float* sums = out.sums + int64_t{r} * row_floats(head_dim);
      weigh(scores[r], span.num_tokens, weights[r], out.maxima + r, sums + head_dim);
    }
    int dim = 0;
    for (; dim + kRegisterVectors * kLanes <= head_dim; dim += kRegisterVectors * kLanes) {
      add_values<kRows, kRegisterVectors>(weights[0], span, dim, out);
    }
    for (; dim < head_dim; dim += kLanes) add_values<kRows, 1>(weights[0], span, dim, out);
  }

  // scores [kRows, kSpanTokens]: of kVectors vectors of tokens from `first_token` on.
  template <int kRows, int kVectors>
  void score(const Factor* queries, const Span& span, int first_token, float* scores) const {
    Products<kRows, kVectors> products;
    const bf16* keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int token = first_token + v * kLanes;
      keys[v] = span.pages[token / kPageTokens] + key_offset(token % kPageTokens, 0, head_dim);
    }
    for (int dim = 0; dim < head_dim; dim += 2) {
      products.add(keys, key_offset(0, dim, head_dim), queries + dim, head_dim);
    }
    products.store_rows(scores + first_token, kSpanTokens);
  }

  // One row's scores to weights; those of tokens that are not visible are zero.
  void weigh(const float* scores, int num_tokens, Factor* weights, float* row_maximum, float* weight_sums) const {
    constexpr int kVectors = kSpanTokens / kLanes;
    const auto visible = [&](int v, Floats x, float other) {
      return first_lanes(std::clamp(num_tokens - v * kLanes, 0, kLanes), x, splat(other));
    };
    Floats x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load(scores + v * kLanes);
    if (num_tokens < kSpanTokens) {
      for (int v = 0; v < kVectors; ++v) x[v] = visible(v, x[v], -std::numeric_limits<float>::infinity());
    }
    Floats most = x[0];
    for (int v = 1; v < kVectors; ++v) most = maximum(most, x[v]);
    *row_maximum = largest(most) * scale_log2;
    const Floats scale = splat(scale_log2), shift = splat(-*row_maximum);
    for (int v = 0; v < kVectors; ++v) x[v] = power_of_two(multiply_add(x[v], scale, shift));
    if (num_tokens < kSpanTokens) {
      for (int v = 0; v < kVectors; ++v) x[v] = visible(v, x[v], 0.0f);
    }
    Floats total = x[0];
    for (int v = 1; v < kVectors; ++v) total = add(total, x[v]);
    store(weight_sums, total);
    for (int v = 0; v < kVectors; ++v) store_factors(weights + v * kLanes, x[v]);
  }

  // weights [kRows, kSpanTokens]; kVectors vectors of dimensions from `dim` on.
  template <int kRows, int kVectors>
  void add_values(const Factor* weights, const Span& span, int dim, const Partial& out) const {
    Products<kRows, kVectors> products;
    const bf16* values[kVectors];
    const int num_pairs = span.num_tokens / 2;
    constexpr int kPagePairs = kPageTokens / 2;
    const auto point_at = [&](const bf16* pairs) {
      for (int v = 0; v < kVectors; ++v) values[v] = pairs + value_offset(0, v * kLanes, head_dim);
    };
    const auto page_values = [&](int page) {
      return span.pages[page] + kPageTokens * head_dim + value_offset(0, dim, head_dim);
    };
    for (int page = 0; page < kSpanPages; ++page) {
      point_at(page_values(page));
      const Factor* page_weights = weights + page * kPageTokens;
      for (int pair = 0; pair < std::min(num_pairs - page * kPagePairs, kPagePairs); ++pair) {
        products.add(values, value_offset(2 * pair, 0, head_dim), page_weights + 2 * pair, kSpanTokens);
      }
    }
    if (span.num_tokens % 2) {
      // The pair's other token is not visible. Its weight is zero, but zero times its value may not be.
      alignas(64) bf16 last[2 * kVectors * kLanes] = {};
      const bf16* pairs = page_values(num_pairs / kPagePairs) + value_offset(2 * (num_pairs % kPagePairs), 0, head_dim);
      for (int i = 0; i < kVectors * kLanes; ++i) last[2 * i] = pairs[2 * i];
      point_at(last);
      products.add(values, 0, weights + 2 * num_pairs, kSpanTokens);
    }
    products.store_rows(out.sums + dim, row_floats(head_dim));
  }
};

}  // namespace pageloom
