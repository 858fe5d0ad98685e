// What happens to each token's row between the matrix products? Every function works on rows [first, last).
#pragma once

#include <algorithm>

#include "kernels.h"

namespace pageloom {

// Rows that a thread takes at a time. Waking the others costs as much as a few rows do.
constexpr int64_t kRowGroup = 4;

// function(first, last) over all rows.
template <class Function>
void for_row_groups(ThreadPool& pool, int64_t num_rows, const Function& function) {
  const auto num_groups = static_cast<int>((num_rows + kRowGroup - 1) / kRowGroup);
  pool.run(num_groups, [&](int group, int) {
    const int64_t first = group * kRowGroup;
    function(first, std::min(first + kRowGroup, num_rows));
  });
}

// residual += x, if x is not nullptr (rounded to bf16); out = rms_norm(residual) * weight. As the PyTorch twin,
// statistics are fp32 and the normalized value is rounded before the weight scales it. All are [rows, width].
void rms_norm_rows(const bf16* x, bf16* residual, const bf16* weight, float eps, int64_t width, int64_t first,
                   int64_t last, bf16* out);

// out = silu(gate) * up for gate_up [rows, 2 * width], whose first half is the gate; silu is rounded to bf16.
void silu_mul_rows(const bf16* gate_up, int64_t width, int64_t first, int64_t last, bf16* out);

// The sum of `count` rows of x, of `width`, those at `indices`, each times its weight: products are rounded, and their
// fp32 sum.
void sum_weighted(const bf16* x, const int64_t* indices, const float* weights, int count, int64_t width, bf16* out);

// out += factor * row, of `width`; both steps are rounded.
void add_scaled(const bf16* row, float factor, int64_t width, bf16* out);

// One layer's rotation and KV write. `qkv` is [rows, (num_heads + 2 * num_kv_heads) * head_dim].
struct RotaryWrite {
  int num_heads, num_kv_heads, head_dim;
  const float* cos;             // [positions, head_dim / 2]
  const float* sin;
  const int64_t* positions;     // [rows]
  const int64_t* slot_mapping;  // [rows] block * block_size + offset; negative: not kept
  int64_t num_rows;
};

// Rotates the queries in place (NeoX halves, fp32, rounded once), and writes rotated keys and values to `kv`. Several
// threads may do so for different rows.
void rotary_write_rows(const RotaryWrite& layer, bf16* qkv, bf16* kv, int64_t first, int64_t last);

}  // namespace pageloom
