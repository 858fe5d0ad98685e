#include "row_kernels.h"

#include <cmath>

#include "activation.h"
#include "simd.h"

namespace pageloom {
namespace {

// The rest of a row that is no multiple of kLanes, as a vector filled up with zeros.
Floats load_rest(const bf16* p, int64_t count) {
  alignas(64) bf16 padded[kLanes] = {};
  __builtin_memcpy(padded, p, count * sizeof(bf16));
  return load_bf16(padded);
}

void store_rest(bf16* p, int64_t count, Floats x) {
  alignas(64) bf16 padded[kLanes];
  store_bf16(padded, x);
  __builtin_memcpy(p, padded, count * sizeof(bf16));
}

// out[i] = function(inputs[0][i], inputs[1][i], ...) for a row of `width` elements.
template <class Function, class... Input>
void map_row(int64_t width, bf16* out, const Function& function, const Input*... inputs) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store_bf16(out + i, function(load_bf16(inputs + i)...));
  if (i < width) store_rest(out + i, width - i, function(load_rest(inputs + i, width - i)...));
}

// Four sums side by side, because one would wait for each addition.
float sum_of_squares(const bf16* row, int64_t width) {
  Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Floats x = load_bf16(row + i + j * kLanes);
      sums[j] = multiply_add(x, x, sums[j]);
    }
  }
  for (; i < width; i += kLanes) {
    const Floats x = i + kLanes <= width ? load_bf16(row + i) : load_rest(row + i, width - i);
    sums[0] = multiply_add(x, x, sums[0]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// The two halves of a head turn against each other.
void rotate_head(bf16* head, const float* cos, const float* sin, int half) {
  const auto rotate = [](Floats& low, Floats& high, Floats c, Floats s) {
    const Floats before = low;
    low = sub(mul(low, c), mul(high, s));
    high = add(mul(high, c), mul(before, s));
  };
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Floats low = load_bf16(head + i), high = load_bf16(head + half + i);
    rotate(low, high, load(cos + i), load(sin + i));
    store_bf16(head + i, low);
    store_bf16(head + half + i, high);
  }
  if (const int rest = half - i; rest > 0) {
    alignas(64) float cosines[kLanes] = {}, sines[kLanes] = {};
    __builtin_memcpy(cosines, cos + i, rest * sizeof(float));
    __builtin_memcpy(sines, sin + i, rest * sizeof(float));
    Floats low = load_rest(head + i, rest), high = load_rest(head + half + i, rest);
    rotate(low, high, load(cosines), load(sines));
    store_rest(head + i, rest, low);
    store_rest(head + half + i, rest, high);
  }
}

void write_key(const bf16* key, int token, int head_dim, bf16* keys) {
  for (int dim = 0; dim < head_dim; dim += 2) __builtin_memcpy(keys + key_offset(token, dim, head_dim), key + dim, 4);
}

void write_two_values(const bf16* even, const bf16* odd, int head_dim, bf16* target) {
  for (int dim = 0; dim < head_dim; ++dim) {
    const uint32_t pair = even[dim] | uint32_t{odd[dim]} << 16;
    __builtin_memcpy(target + 2 * dim, &pair, sizeof pair);
  }
}

// Leaves the other half of each pair as it is.
void write_one_value(const bf16* value, int token, int head_dim, bf16* target) {
  const int shift = token % 2 * 16;
  const uint32_t kept = 0xffff0000u >> shift;
  for (int dim = 0; dim < head_dim; ++dim) {
    const uint32_t pair = (pair_at(target + 2 * dim) & kept) | uint32_t{value[dim]} << shift;
    __builtin_memcpy(target + 2 * dim, &pair, sizeof pair);
  }
}

}  // namespace

void rms_norm_rows(const bf16* x, bf16* residual, const bf16* weight, float eps, int64_t width, int64_t first,
                   int64_t last, bf16* out) {
  for (int64_t row = first; row < last; ++row) {
    bf16* sums = residual + row * width;
    if (x != nullptr) map_row(width, sums, add, x + row * width, sums);
    const float mean = sum_of_squares(sums, width) / static_cast<float>(width);
    const Floats factor = splat(1.0f / std::sqrt(mean + eps));
    const auto normalize = [&](Floats value, Floats scale) { return mul(rounded(mul(value, factor)), scale); };
    map_row(width, out + row * width, normalize, sums, weight);
  }
}

void silu_mul_rows(const bf16* gate_up, int64_t width, int64_t first, int64_t last, bf16* out) {
  for (int64_t row = first; row < last; ++row) {
    const bf16* gate = gate_up + row * 2 * width;
    map_row(width, out + row * width, silu_mul, gate, gate + width);
  }
}

void sum_weighted(const bf16* x, const int64_t* indices, const float* weights, int count, int64_t width, bf16* out) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t rest = width - i;
    Floats total = zeros();
    for (int j = 0; j < count; ++j) {
      const bf16* row = x + indices[j] * width + i;
      const Floats value = rest >= kLanes ? load_bf16(row) : load_rest(row, rest);
      total = add(total, rounded(mul(value, splat(weights[j]))));
    }
    rest >= kLanes ? store_bf16(out + i, total) : store_rest(out + i, rest, total);
  }
}

void add_scaled(const bf16* row, float factor, int64_t width, bf16* out) {
  const auto add_product = [&](Floats sum, Floats value) { return add(sum, rounded(mul(value, splat(factor)))); };
  map_row(width, out, add_product, out, row);
}

void rotary_write_rows(const RotaryWrite& layer, bf16* qkv, bf16* kv, int64_t first, int64_t last) {
  const int head_dim = layer.head_dim, half = head_dim / 2;
  const int64_t width = int64_t{layer.num_heads + 2 * layer.num_kv_heads} * head_dim;
  const int64_t page = page_elements(layer.num_kv_heads, head_dim);
  const int64_t* slots = layer.slot_mapping;
  for (int64_t row = first; row < last; ++row) {
    bf16* heads = qkv + row * width;
    const float* cos = layer.cos + layer.positions[row] * half;
    const float* sin = layer.sin + layer.positions[row] * half;
    for (int head = 0; head < layer.num_heads + layer.num_kv_heads; ++head) {
      rotate_head(heads + head * head_dim, cos, sin, half);
    }
    const int64_t slot = slots[row];
    if (slot < 0) continue;
    // Two tokens share the pairs of their values. If both are in this step, the first one's row writes both: another
    // thread may have the second one's.
    const int token = static_cast<int>(slot % kPageTokens);
    const bool by_row_before = token % 2 == 1 && row > 0 && slots[row - 1] == slot - 1;
    const bool with_row_after = token % 2 == 0 && row + 1 < layer.num_rows && slots[row + 1] == slot + 1;
    // A block is whole pages, so a slot's page is found without asking for the block.
    bf16* target = kv + slot / kPageTokens * page;
    for (int head = 0; head < layer.num_kv_heads; ++head) {
      bf16* keys = target + head_offset(head, head_dim);
      bf16* values = keys + kPageTokens * head_dim + value_offset(token & ~1, 0, head_dim);
      const bf16* key = heads + (layer.num_heads + head) * head_dim;
      const bf16* value = key + layer.num_kv_heads * head_dim;
      write_key(key, token, head_dim, keys);
      if (with_row_after) {
        write_two_values(value, value + width, head_dim, values);
      } else if (!by_row_before) {
        write_one_value(value, token, head_dim, values);
      }
    }
  }
}

}  // namespace pageloom
