// One step of a Llama: token ids in, normalized hidden states out, keys and values written on the way.
#pragma once

#include <vector>

#include "attention_plan.h"
#include "experts.h"
#include "kernels.h"
#include "matrix.h"
#include "memory.h"

namespace pageloom {

// The structs that are pointed to from outside mirror those of library.py, and own nothing.
struct Linear {
  const Matrix* matrix;
  const bf16* bias;  // nullptr: none
};

struct Layer {
  const bf16* attention_norm;
  Linear qkv;  // queries, keys and values below each other
  const bf16* query_norm;  // [head_dim], of each head by itself; nullptr: none, as for the keys
  const bf16* key_norm;
  Linear output;
  const bf16* mlp_norm;
  // If this is nullptr the layer has one network for all tokens, else only this.
  const Experts* experts;
  Linear gate_up;  // gate and up below each other
  Linear down;
};

struct ModelSpec {
  int32_t num_layers, num_heads, num_kv_heads, head_dim;
  int64_t hidden_size, intermediate_size;  // the latter of layers without experts
  float rms_norm_eps;
  const Layer* layers;
  const Matrix* embedding;
  const Matrix* head;  // the embedding, if they are tied
  const bf16* norm;
  const float* cos;  // [positions, head_dim / 2]
  const float* sin;
};

struct StepInputs {
  int64_t num_rows;
  const int64_t* token_ids;     // [num_rows]
  const int64_t* positions;     // [num_rows]
  const int64_t* slot_mapping;  // [num_rows] block * block_size + offset; negative: K and V are not kept
  int64_t num_outputs;
  const int64_t* output_rows;  // [num_outputs] the rows whose hidden states are asked for
  AttentionBatch attention;
  int64_t num_taps;
  const int32_t* tap_layers;  // [num_taps]
  bf16* taps;                 // [num_rows, num_taps, hidden_size] receives what goes into those layers
};

// What it points to must outlive it. One thread at a time may call it.
class Model {
 public:
  Model(ThreadPool& pool, const ModelSpec& spec);

  // `kv` has one pointer for each layer, `hidden` is [num_outputs, hidden_size].
  void forward(const StepInputs& step, bf16* const* kv, bf16* hidden);
  // [num_rows, vocabulary], not rounded.
  void logits(const bf16* hidden, int64_t num_rows, float* logits);
  // [num_rows] as matrix_gemm_argmax of the logits.
  void most_likely(const bf16* hidden, int64_t num_rows, int64_t* token_ids);
  // [num_rows, hidden_size]
  void embed(const int64_t* token_ids, int64_t num_rows, bf16* out);

  const Matrix& head() const { return *spec_.head; }

 private:
  void keep_taps(const StepInputs& step, int layer);
  void attend_layer(const StepInputs& step, const AttentionPlan& plan, const Layer& layer, bf16* kv);
  void normalize_heads(const Layer& layer, bf16* qkv);
  void keep_rows(const StepInputs& step);
  void feed_forward(const Layer& layer, int64_t num_rows);
  void multiply(const Linear& linear, const bf16* x, int64_t num_rows, bf16* y);
  void normalize(const bf16* x, const bf16* weight, int64_t num_rows, bf16* out);
  void reserve(const StepInputs& step);
  void* matrix_scratch(const Matrix& matrix, int64_t num_rows);

  ThreadPool& pool_;
  ModelSpec spec_;
  std::vector<Layer> layers_;
  AttentionShape shape_;
  int64_t qkv_size_, query_size_;
  ExpertMlp experts_;

  // Activations of the step, all [rows, size].
  Buffer residual_, normalized_, delta_;  // hidden_size
  Buffer wide_;                           // qkv, or gate and up
  Buffer inner_;                          // attention's output, or silu(gate) * up
  Buffer kept_;                           // keep_rows' copies
  Buffer scratch_;
};

}  // namespace pageloom
