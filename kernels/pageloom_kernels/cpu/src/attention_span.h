// What do rows of queries take from one span of their context? The arithmetic of attention, for one KV head.
//
// A row's bits depend on nothing but the row and the span: each of its sums has one order, whatever rows share the
// tile with it. So decodes, chunks of prompts and shared prefixes all come here.
#pragma once

#include "attention_partial.h"

namespace pageloom {

constexpr int kSpanPages = 2;
constexpr int kSpanTokens = kSpanPages * kPageTokens;

// Rows of a tile, as many as the registers hold sums for.
#if defined(__AVX512BF16__)
constexpr int kTileRows = 6;
#elif defined(__AVX512F__)
constexpr int kTileRows = 4;
#else
constexpr int kTileRows = 2;
#endif
// Vectors of dimensions that a tile weighs in one pass over the values.
constexpr int kTileVectors = 4;

// One KV head's parts of a span's pages.
struct SpanPages {
  const bf16* pages[kSpanPages];
};

struct SpanTask {
  int num_tokens;  // visible ones, from the span's first; at least 1
  int head_dim;
  float scale_log2;
};

// scores [kRows, kSpanTokens]: of kVectors vectors of tokens from `first_token` on.
template <int kRows, int kVectors>
inline void score_tokens(const bf16* query, const SpanPages& span, const SpanTask& task, int first_token,
                         float* scores) {
  Floats sums[kRows][kVectors];
  const bf16* keys[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int token = first_token + v * kLanes;
    keys[v] = span.pages[token / kPageTokens] + key_offset(token % kPageTokens, 0, task.head_dim);
    for (int r = 0; r < kRows; ++r) sums[r][v] = zeros();
  }
  for (int d = 0; d < task.head_dim; d += 2) {
    Pairs tokens[kVectors];
    for (int v = 0; v < kVectors; ++v) tokens[v] = load_pairs(keys[v] + key_offset(0, d, task.head_dim));
    for (int r = 0; r < kRows; ++r) {
      const Pairs pair = splat_pair(pair_at(query + int64_t{r} * task.head_dim + d));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot_pairs(sums[r][v], tokens[v], pair);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(scores + r * kSpanTokens + first_token + v * kLanes, sums[r][v]);
  }
}

// The weights of one row's scores, rounded as the values' factors; the rest of the span gets zeros.
inline void weigh_scores(const float* scores, int num_tokens, float scale_log2, bf16* weights, float* row_maximum,
                         float* weight_sums) {
  constexpr int kVectors = kSpanTokens / kLanes;
  const Floats nothing = splat(-std::numeric_limits<float>::infinity());
  Floats x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load(scores + v * kLanes);
  if (num_tokens < kSpanTokens) {
    for (int v = 0; v < kVectors; ++v) {
      x[v] = first_lanes(std::clamp(num_tokens - v * kLanes, 0, kLanes), x[v], nothing);
    }
  }
  Floats most = x[0];
  for (int v = 1; v < kVectors; ++v) most = maximum(most, x[v]);
  *row_maximum = largest(most) * scale_log2;
  const Floats scale = splat(scale_log2), bias = splat(-*row_maximum);
  for (int v = 0; v < kVectors; ++v) x[v] = power_of_two(multiply_add(x[v], scale, bias));
  if (num_tokens < kSpanTokens) {
    for (int v = 0; v < kVectors; ++v) {
      x[v] = first_lanes(std::clamp(num_tokens - v * kLanes, 0, kLanes), x[v], zeros());
    }
  }
  Floats total = x[0];
  for (int v = 1; v < kVectors; ++v) total = add(total, x[v]);
  store(weight_sums, total);
  for (int v = 0; v < kVectors; ++v) store_bf16(weights + v * kLanes, x[v]);
}

// values [kRows, head_dim]: kVectors vectors of dimensions from `first_dim` on.
template <int kRows, int kVectors>
inline void weigh_values(const bf16* weights, const SpanPages& span, const SpanTask& task, int first_dim,
                         float* values) {
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = zeros();
  }
  const auto add_pair = [&](const bf16* pairs, int token) {
    Pairs dims[kVectors];
    for (int v = 0; v < kVectors; ++v) dims[v] = load_pairs(pairs + 2 * v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Pairs pair = splat_pair(pair_at(weights + r * kSpanTokens + token));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot_pairs(sums[r][v], dims[v], pair);
    }
  };
  for (int p = 0; p < kSpanPages; ++p) {
    const bf16* page = span.pages[p] + value_offset(0, first_dim, task.head_dim) + kPageTokens * task.head_dim;
    const int first = p * kPageTokens, num_tokens = std::min(task.num_tokens - first, kPageTokens);
    for (int token = 0; token + 1 < num_tokens; token += 2) {
      add_pair(page + int64_t{token} * task.head_dim, first + token);
    }
    if (num_tokens > 0 && num_tokens % 2) {
      // The pair's other token is not visible: its weight is zero, but its value may be no number.
      alignas(64) bf16 last[2 * kVectors * kLanes];
      const bf16* pair = page + int64_t{num_tokens - 1} * task.head_dim;
      for (int i = 0; i < 2 * kVectors * kLanes; i += 2) {
        last[i] = pair[i];
        last[i + 1] = 0;
      }
      add_pair(last, first + num_tokens - 1);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store(values + int64_t{r} * row_floats(task.head_dim) + v * kLanes, sums[r][v]);
  }
}

template <int kRows>
inline void attend_tile(const bf16* query, const SpanPages& span, const SpanTask& task, const Partial& out) {
  alignas(64) float scores[kRows][kSpanTokens];
  alignas(64) bf16 weights[kRows][kSpanTokens];
  for (int token = 0; token < task.num_tokens;) {
    constexpr int kTileTokens = kTileVectors * kLanes;
    if (task.num_tokens - token > kTileTokens - kPageTokens) {
      score_tokens<kRows, kTileVectors>(query, span, task, token, scores[0]);
      token += kTileTokens;
    } else {
      score_tokens<kRows, kPageTokens / kLanes>(query, span, task, token, scores[0]);
      token += kPageTokens;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    weigh_scores(scores[r], task.num_tokens, task.scale_log2, weights[r], &out.maxima[r],
                 out.sums + int64_t{r} * row_floats(task.head_dim) + task.head_dim);
  }
  const auto weigh = [&]<int kVectors>(int first_dim) {
    weigh_values<kRows, kVectors>(weights[0], span, task, first_dim, out.sums + first_dim);
  };
  int d = 0;
  for (; d + kTileVectors * kLanes <= task.head_dim; d += kTileVectors * kLanes) {
    weigh.template operator()<kTileVectors>(d);
  }
  switch ((task.head_dim - d) / kLanes) {
    case 3: weigh.template operator()<3>(d); break;
    case 2: weigh.template operator()<2>(d); break;
    case 1: weigh.template operator()<1>(d); break;
  }
}

// Rows of queries [num_rows, head_dim] that see the same tokens of the span.
inline void attend_span(const bf16* query, int num_rows, const SpanPages& span, const SpanTask& task,
                        const Partial& out) {
  const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
  int row = 0;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int rows = (num_rows - row + num_tiles - tile - 1) / (num_tiles - tile);
    const bf16* tile_query = query + int64_t{row} * task.head_dim;
    const Partial tile_out = rows_from(out, row, task.head_dim);
    switch (rows) {
      case 1: attend_tile<1>(tile_query, span, task, tile_out); break;
      case 2: attend_tile<2>(tile_query, span, task, tile_out); break;
#if defined(__AVX512F__)
      case 3: attend_tile<3>(tile_query, span, task, tile_out); break;
      case 4: attend_tile<4>(tile_query, span, task, tile_out); break;
#endif
#if defined(__AVX512BF16__)
      case 5: attend_tile<5>(tile_query, span, task, tile_out); break;
      case 6: attend_tile<6>(tile_query, span, task, tile_out); break;
#endif
    }
    row += rows;
  }
}

}  // namespace pageloom
