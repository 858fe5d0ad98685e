// What do a layer's experts make of its tokens? Each token takes a few of many small feed-forward networks.
#pragma once

#include <vector>

#include "kernels.h"
#include "matrix.h"
#include "memory.h"

namespace pageloom {

// Owns nothing; mirrored in structs.py. A gate_up has gate and up below each other, and no matrix has a bias.
struct Experts {
  int32_t num_experts, experts_per_token;
  bool normalize_weights;        // whether the weights of a token's experts are scaled to a sum of 1
  const Matrix* router;          // num_experts outputs
  const Matrix* const* gate_up;  // [num_experts]
  const Matrix* const* down;     // [num_experts]
  // The network that every token takes beside them, and the one output that it is scaled by; nullptr: none.
  const Matrix* shared_gate_up;
  const Matrix* shared_down;
  const Matrix* shared_gate;
};

// Rounds where the PyTorch path does: after each matrix, after weighting, and once after the sum over the experts,
// which is fp32. So a row's result is the same whatever the other rows and the threads are.
class ExpertMlp {
 public:
  explicit ExpertMlp(ThreadPool& pool) : pool_(pool) {}

  // x and out are [num_rows, hidden_size], and may not overlap.
  void forward(const Experts& experts, const bf16* x, int64_t num_rows, bf16* out);

 private:
  void choose(const Experts& experts, const bf16* x, int64_t num_rows);
  void group(const Experts& experts);
  void run_experts(const Experts& experts, const bf16* x, int64_t num_rows);
  void combine(const Experts& experts, int64_t num_rows, bf16* out);
  void add_shared(const Experts& experts, const bf16* x, int64_t num_rows, bf16* out);
  void run_mlp(const Matrix& gate_up, const Matrix& down, const bf16* x, int64_t num_rows, bf16* y);
  void multiply(const Matrix& matrix, const bf16* x, int64_t num_rows, bf16* y);
  void* scratch(const Matrix& matrix, int64_t num_rows);

  ThreadPool& pool_;

  // By pair of a token and one of its experts, token by token.
  std::vector<int32_t> chosen_;
  std::vector<float> weights_;
  // Where the pair is among those that are grouped by expert, and where each expert's group starts.
  std::vector<int64_t> place_, start_;

  Buffer router_logits_, probabilities_;  // [rows, num_experts]
  Buffer grouped_;                        // [pairs, hidden_size], the experts' inputs and then their outputs
  Buffer wide_, inner_;                   // of one network
  Buffer shared_, shared_gate_;
  Buffer scratch_;
};

}  // namespace pageloom
