#include "experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "row_kernels.h"
#include "simd.h"

namespace pageloom {
namespace {

// A probability that is none: of an expert that was chosen.
constexpr float kTaken = -1.0f;

// The likeliest experts of one token in descending order, the first of equals, and their weights. If a logit is not a
// number no weight is, but the experts are still different ones. `probabilities`, [num_experts], is used on the way.
void choose_row(const Experts& experts, const bf16* logits, float* probabilities, int32_t* chosen, float* weights) {
  const int num_experts = experts.num_experts;
  float largest = to_float(logits[0]);
  for (int e = 1; e < num_experts; ++e) largest = std::max(largest, to_float(logits[e]));
  float total = 0.0f;
  for (int e = 0; e < num_experts; ++e) total += probabilities[e] = std::exp(to_float(logits[e]) - largest);
  float chosen_total = 0.0f;
  for (int i = 0; i < experts.experts_per_token; ++i) {
    int best = -1;
    for (int e = 0; e < num_experts; ++e) {
      if (probabilities[e] != kTaken && (best < 0 || probabilities[e] > probabilities[best])) best = e;
    }
    chosen[i] = best;
    chosen_total += weights[i] = probabilities[best] / total;
    probabilities[best] = kTaken;
  }
  if (!experts.normalize_weights) return;
  for (int i = 0; i < experts.experts_per_token; ++i) weights[i] /= chosen_total;
}

}  // namespace

void ExpertMlp::forward(const Experts& experts, const bf16* x, int64_t num_rows, bf16* out) {
  choose(experts, x, num_rows);
  group(experts);
  run_experts(experts, x, num_rows);
  combine(experts, num_rows, out);
  if (experts.shared_gate != nullptr) add_shared(experts, x, num_rows, out);
}

void ExpertMlp::choose(const Experts& experts, const bf16* x, int64_t num_rows) {
  router_logits_.reserve(sizeof(bf16) * num_rows * experts.num_experts);
  probabilities_.reserve(sizeof(float) * num_rows * experts.num_experts);
  bf16* logits = router_logits_.as<bf16>();
  multiply(*experts.router, x, num_rows, logits);
  chosen_.resize(num_rows * experts.experts_per_token);
  weights_.resize(chosen_.size());
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t pair = row * experts.experts_per_token, start = row * experts.num_experts;
      choose_row(experts, logits + start, probabilities_.as<float>() + start, &chosen_[pair], &weights_[pair]);
    }
  });
}

void ExpertMlp::group(const Experts& experts) {
  start_.assign(experts.num_experts + 1, 0);
  for (const int32_t expert : chosen_) ++start_[expert + 1];
  for (int e = 0; e < experts.num_experts; ++e) start_[e + 1] += start_[e];
  std::vector<int64_t> next(start_.begin(), start_.end() - 1);
  place_.resize(chosen_.size());
  for (size_t pair = 0; pair < place_.size(); ++pair) place_[pair] = next[chosen_[pair]]++;
}

void ExpertMlp::run_experts(const Experts& experts, const bf16* x, int64_t num_rows) {
  const int64_t hidden_size = in_features(*experts.router);
  grouped_.reserve(sizeof(bf16) * chosen_.size() * hidden_size);
  bf16* grouped = grouped_.as<bf16>();
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t pair = first * experts.experts_per_token; pair < last * experts.experts_per_token; ++pair) {
      std::memcpy(grouped + place_[pair] * hidden_size, x + pair / experts.experts_per_token * hidden_size,
                  hidden_size * sizeof(bf16));
    }
  });
  for (int e = 0; e < experts.num_experts; ++e) {
    bf16* rows = grouped + start_[e] * hidden_size;
    const int64_t num_pairs = start_[e + 1] - start_[e];
    if (num_pairs > 0) run_mlp(*experts.gate_up[e], *experts.down[e], rows, num_pairs, rows);
  }
}

void ExpertMlp::combine(const Experts& experts, int64_t num_rows, bf16* out) {
  const int64_t hidden_size = in_features(*experts.router);
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t pair = row * experts.experts_per_token;
      sum_weighted(grouped_.as<bf16>(), &place_[pair], &weights_[pair], experts.experts_per_token, hidden_size,
                   out + row * hidden_size);
    }
  });
}

void ExpertMlp::add_shared(const Experts& experts, const bf16* x, int64_t num_rows, bf16* out) {
  const int64_t hidden_size = in_features(*experts.router);
  shared_.reserve(sizeof(bf16) * num_rows * hidden_size);
  shared_gate_.reserve(sizeof(bf16) * num_rows);
  run_mlp(*experts.shared_gate_up, *experts.shared_down, x, num_rows, shared_.as<bf16>());
  multiply(*experts.shared_gate, x, num_rows, shared_gate_.as<bf16>());
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float gate = 1.0f / (1.0f + std::exp(-to_float(shared_gate_.as<bf16>()[row])));
      const int64_t start = row * hidden_size;
      add_scaled(shared_.as<bf16>() + start, to_float(to_bf16(gate)), hidden_size, out + start);
    }
  });
}

// y may be x.
void ExpertMlp::run_mlp(const Matrix& gate_up, const Matrix& down, const bf16* x, int64_t num_rows, bf16* y) {
  const int64_t inner_size = in_features(down);
  wide_.reserve(sizeof(bf16) * num_rows * 2 * inner_size);
  inner_.reserve(sizeof(bf16) * num_rows * inner_size);
  matrix_gemm_silu_mul(pool_, gate_up, x, in_features(gate_up), num_rows, nullptr, wide_.as<bf16>(),
                       inner_.as<bf16>(), scratch(gate_up, num_rows));
  multiply(down, inner_.as<bf16>(), num_rows, y);
}

void ExpertMlp::multiply(const Matrix& matrix, const bf16* x, int64_t num_rows, bf16* y) {
  matrix_gemm(pool_, matrix, x, in_features(matrix), num_rows, nullptr, y, out_features(matrix),
              scratch(matrix, num_rows));
}

void* ExpertMlp::scratch(const Matrix& matrix, int64_t num_rows) {
  scratch_.reserve(matrix_scratch_bytes(matrix, num_rows, pool_.num_threads()));
  return scratch_.as<void>();
}

}  // namespace pageloom
