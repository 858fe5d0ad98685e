#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "row_kernels.h"

namespace pageloom {

Model::Model(ThreadPool& pool, const ModelSpec& spec)
    : pool_(pool),
      spec_(spec),
      layers_(spec.layers, spec.layers + spec.num_layers),
      shape_{spec.num_heads, spec.num_kv_heads, spec.head_dim, 1.0f / std::sqrt(static_cast<float>(spec.head_dim))},
      qkv_size_(int64_t{spec.num_heads + 2 * spec.num_kv_heads} * spec.head_dim),
      query_size_(int64_t{spec.num_heads} * spec.head_dim),
      experts_(pool) {
  spec_.layers = layers_.data();
}

void Model::forward(const StepInputs& step, bf16* const* kv, bf16* hidden) {
  const AttentionPlan plan = plan_attention(shape_, step.attention, pool_.num_threads());
  reserve(step);
  embed(step.token_ids, step.num_rows, residual_.as<bf16>());
  int64_t num_rows = step.num_rows;
  const bf16* delta = nullptr;
  for (int i = 0; i < spec_.num_layers; ++i) {
    const Layer& layer = layers_[i];
    normalize(delta, layer.attention_norm, num_rows, normalized_.as<bf16>());
    keep_taps(step, i);
    attend_layer(step, plan, layer, kv[i]);
    if (i + 1 == spec_.num_layers) {
      // What follows the last attention concerns the rows that are asked for alone.
      if (step.num_outputs == 0) return;
      keep_rows(step);
      num_rows = step.num_outputs;
    }
    multiply(layer.output, inner_.as<bf16>(), num_rows, delta_.as<bf16>());
    normalize(delta_.as<bf16>(), layer.mlp_norm, num_rows, normalized_.as<bf16>());
    if (layer.experts != nullptr) {
      experts_.forward(*layer.experts, normalized_.as<bf16>(), num_rows, delta_.as<bf16>());
    } else {
      feed_forward(layer, num_rows);
    }
    delta = delta_.as<bf16>();
  }
  normalize(delta, spec_.norm, num_rows, hidden);
}

void Model::logits(const bf16* hidden, int64_t num_rows, float* logits) {
  matrix_gemm_float(pool_, *spec_.head, hidden, spec_.hidden_size, num_rows, logits,
                    matrix_scratch(*spec_.head, num_rows));
}

void Model::most_likely(const bf16* hidden, int64_t num_rows, int64_t* token_ids) {
  matrix_gemm_argmax(pool_, *spec_.head, hidden, spec_.hidden_size, num_rows, token_ids,
                     matrix_scratch(*spec_.head, num_rows));
}

void Model::embed(const int64_t* token_ids, int64_t num_rows, bf16* out) {
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      matrix_row(*spec_.embedding, token_ids[row], out + row * spec_.hidden_size);
    }
  });
}

// Copies the residual, which `normalize` has just completed, to wherever the layer's input is asked for.
void Model::keep_taps(const StepInputs& step, int layer) {
  for (int64_t tap = 0; tap < step.num_taps; ++tap) {
    if (step.tap_layers[tap] != layer) continue;
    for (int64_t row = 0; row < step.num_rows; ++row) {
      std::memcpy(step.taps + (row * step.num_taps + tap) * spec_.hidden_size,
                  residual_.as<bf16>() + row * spec_.hidden_size, spec_.hidden_size * sizeof(bf16));
    }
  }
}

void Model::attend_layer(const StepInputs& step, const AttentionPlan& plan, const Layer& layer, bf16* kv) {
  bf16* qkv = wide_.as<bf16>();
  multiply(layer.qkv, normalized_.as<bf16>(), step.num_rows, qkv);
  const RotaryWrite rotary{.num_heads = spec_.num_heads,
                           .num_kv_heads = spec_.num_kv_heads,
                           .head_dim = spec_.head_dim,
                           .cos = spec_.cos,
                           .sin = spec_.sin,
                           .positions = step.positions,
                           .slot_mapping = step.slot_mapping,
                           .num_rows = step.num_rows};
  for_row_groups(pool_, step.num_rows, [&](int64_t first, int64_t last) {
    if (layer.query_norm != nullptr) {
      for (int64_t row = first; row < last; ++row) normalize_heads(layer, qkv + row * qkv_size_);
    }
    rotary_write_rows(rotary, qkv, kv, first, last);
  });
  scratch_.reserve(plan.scratch_bytes());
  attend(pool_, plan, qkv, qkv_size_, kv, inner_.as<bf16>(), query_size_, scratch_.as<void>());
}

void Model::normalize_heads(const Layer& layer, bf16* qkv) {
  bf16* keys = qkv + query_size_;
  rms_norm_rows(nullptr, qkv, layer.query_norm, spec_.rms_norm_eps, spec_.head_dim, 0, spec_.num_heads, qkv);
  rms_norm_rows(nullptr, keys, layer.key_norm, spec_.rms_norm_eps, spec_.head_dim, 0, spec_.num_kv_heads, keys);
}

// Leaves the rows that are asked for, in their order, in inner_ and residual_.
void Model::keep_rows(const StepInputs& step) {
  for (const auto& [buffer, width] : {std::pair{&inner_, query_size_}, std::pair{&residual_, spec_.hidden_size}}) {
    bf16* rows = buffer->as<bf16>();
    for (int64_t i = 0; i < step.num_outputs; ++i) {
      std::memcpy(kept_.as<bf16>() + i * width, rows + step.output_rows[i] * width, width * sizeof(bf16));
    }
    std::memcpy(rows, kept_.as<bf16>(), step.num_outputs * width * sizeof(bf16));
  }
}

void Model::feed_forward(const Layer& layer, int64_t num_rows) {
  const Matrix& gate_up = *layer.gate_up.matrix;
  bf16* inner = inner_.as<bf16>();
  matrix_gemm_silu_mul(pool_, gate_up, normalized_.as<bf16>(), spec_.hidden_size, num_rows, layer.gate_up.bias,
                       wide_.as<bf16>(), inner, matrix_scratch(gate_up, num_rows));
  multiply(layer.down, inner, num_rows, delta_.as<bf16>());
}

void Model::multiply(const Linear& linear, const bf16* x, int64_t num_rows, bf16* y) {
  const Matrix& matrix = *linear.matrix;
  matrix_gemm(pool_, matrix, x, in_features(matrix), num_rows, linear.bias, y, out_features(matrix),
              matrix_scratch(matrix, num_rows));
}

void Model::normalize(const bf16* x, const bf16* weight, int64_t num_rows, bf16* out) {
  for_row_groups(pool_, num_rows, [&](int64_t first, int64_t last) {
    rms_norm_rows(x, residual_.as<bf16>(), weight, spec_.rms_norm_eps, spec_.hidden_size, first, last, out);
  });
}

void Model::reserve(const StepInputs& step) {
  const auto rows = [&](int64_t width) { return static_cast<size_t>(step.num_rows * width) * sizeof(bf16); };
  for (Buffer* buffer : {&residual_, &normalized_, &delta_}) buffer->reserve(rows(spec_.hidden_size));
  wide_.reserve(rows(std::max(qkv_size_, 2 * spec_.intermediate_size)));
  inner_.reserve(rows(std::max(query_size_, spec_.intermediate_size)));
  kept_.reserve(sizeof(bf16) * step.num_outputs * std::max(query_size_, spec_.hidden_size));
}

void* Model::matrix_scratch(const Matrix& matrix, int64_t num_rows) {
  scratch_.reserve(matrix_scratch_bytes(matrix, num_rows, pool_.num_threads()));
  return scratch_.as<void>();
}

}  // namespace pageloom
