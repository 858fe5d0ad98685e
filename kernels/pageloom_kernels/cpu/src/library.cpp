// The functions that Python calls; library.py declares each. Pointers are to contiguous arrays unless a stride is
// given. Those that allocate return nullptr or false if there is no memory.
#include <exception>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "experts.h"
#include "kernels.h"
#include "matrix.h"
#include "memory.h"
#include "memory_ahead.h"
#include "model.h"
#include "row_kernels.h"
#include "thread_pool.h"

#define PAGELOOM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace pageloom;

// Matrices, and the memory in which they lie.
struct Weights {
  Arena arena;
  std::vector<std::unique_ptr<Matrix>> matrices;

  Matrix* add(Matrix matrix) {
    matrices.push_back(std::make_unique<Matrix>(std::move(matrix)));
    return matrices.back().get();
  }
};

template <class Function>
bool succeeds(const Function& function) {
  try {
    function();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

PAGELOOM_EXPORT ThreadPool* pageloom_pool_create(int num_threads, const int* cpus) {
  ThreadPool* pool = nullptr;
  succeeds([&] { pool = new ThreadPool(num_threads, cpus); });
  return pool;
}

PAGELOOM_EXPORT void pageloom_pool_free(ThreadPool* pool) { delete pool; }

PAGELOOM_EXPORT Weights* pageloom_weights_create() {
  Weights* weights = nullptr;
  succeeds([&] { weights = new Weights; });
  return weights;
}

PAGELOOM_EXPORT void pageloom_weights_free(Weights* weights) { delete weights; }

PAGELOOM_EXPORT size_t pageloom_weights_bytes(const Weights* weights) { return weights->arena.num_bytes(); }

PAGELOOM_EXPORT Matrix* pageloom_bf16_matrix(ThreadPool* pool, Weights* weights, const bf16* weight,
                                             int64_t out_features, int64_t in_features) {
  Matrix* matrix = nullptr;
  succeeds([&] {
    const ThreadPool::Step step(*pool);
    matrix = weights->add(bf16_pack(*pool, weights->arena, weight, out_features, in_features));
  });
  return matrix;
}

// An empty matrix, for pageloom_quant_append.
PAGELOOM_EXPORT Matrix* pageloom_quant_matrix(Weights* weights, int64_t in_features, int codes_per_input) {
  Matrix* matrix = nullptr;
  succeeds([&] {
    matrix = weights->add(QuantMatrix{.in_features = in_features, .codes_per_input = codes_per_input});
  });
  return matrix;
}

PAGELOOM_EXPORT bool pageloom_quant_supports(int ggml_type, int64_t in_features) {
  return quant_supports(ggml_type, in_features);
}

PAGELOOM_EXPORT bool pageloom_quant_append(ThreadPool* pool, Weights* weights, Matrix* matrix, int ggml_type,
                                           const void* blocks, int64_t num_outputs) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    quant_append(*pool, weights->arena, std::get<QuantMatrix>(*matrix), ggml_type, blocks, num_outputs);
  });
}

PAGELOOM_EXPORT Model* pageloom_model_create(ThreadPool* pool, const ModelSpec* spec) {
  Model* model = nullptr;
  succeeds([&] { model = new Model(*pool, *spec); });
  return model;
}

PAGELOOM_EXPORT void pageloom_model_free(Model* model) { delete model; }

PAGELOOM_EXPORT bool pageloom_forward(ThreadPool* pool, Model* model, const StepInputs* inputs, bf16* const* kv,
                                      bf16* hidden) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    model->forward(*inputs, kv, hidden);
  });
}

PAGELOOM_EXPORT bool pageloom_logits(ThreadPool* pool, Model* model, const bf16* hidden, int64_t num_rows,
                                     float* logits) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    model->logits(hidden, num_rows, logits);
  });
}

PAGELOOM_EXPORT bool pageloom_most_likely(ThreadPool* pool, Model* model, const bf16* hidden, int64_t num_rows,
                                          int64_t* token_ids) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    model->most_likely(hidden, num_rows, token_ids);
  });
}

PAGELOOM_EXPORT void pageloom_embed(ThreadPool* pool, Model* model, const int64_t* token_ids, int64_t num_rows,
                                    bf16* out) {
  const ThreadPool::Step step(*pool);
  model->embed(token_ids, num_rows, out);
}

PAGELOOM_EXPORT MemoryAhead* pageloom_memory_ahead_create(char* start, int64_t num_regions, int64_t region_bytes,
                                                          int64_t ahead_bytes) {
  MemoryAhead* memory = nullptr;
  succeeds([&] { memory = new MemoryAhead(start, num_regions, region_bytes, ahead_bytes); });
  return memory;
}

PAGELOOM_EXPORT void pageloom_memory_ahead_free(MemoryAhead* memory) { delete memory; }

PAGELOOM_EXPORT void pageloom_memory_ahead_used(MemoryAhead* memory, int64_t region_bytes) {
  memory->used(region_bytes);
}

PAGELOOM_EXPORT int64_t pageloom_memory_ahead_resident(MemoryAhead* memory) { return memory->resident(); }

// ---- Single kernels, for their tests and benchmarks.

PAGELOOM_EXPORT void pageloom_matrix_row(const Matrix* matrix, int64_t row, bf16* out) {
  matrix_row(*matrix, row, out);
}

// Exactly one of `y`, `sums` and `winners` is not nullptr, and says which product is wanted; x and y as the strides
// say.
PAGELOOM_EXPORT bool pageloom_matrix_product(ThreadPool* pool, const Matrix* matrix, const bf16* x, int64_t x_stride,
                                             int64_t num_rows, const bf16* bias, bf16* y, int64_t y_stride,
                                             float* sums, int64_t* winners) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    const Buffer scratch(matrix_scratch_bytes(*matrix, num_rows, pool->num_threads()));
    void* memory = scratch.as<void>();
    if (y != nullptr) matrix_gemm(*pool, *matrix, x, x_stride, num_rows, bias, y, y_stride, memory);
    if (sums != nullptr) matrix_gemm_float(*pool, *matrix, x, x_stride, num_rows, sums, memory);
    if (winners != nullptr) matrix_gemm_argmax(*pool, *matrix, x, x_stride, num_rows, winners, memory);
  });
}

PAGELOOM_EXPORT void pageloom_rms_norm(const bf16* x, bf16* residual, const bf16* weight, float eps, int64_t num_rows,
                                       int64_t width, bf16* out) {
  rms_norm_rows(x, residual, weight, eps, width, 0, num_rows, out);
}

PAGELOOM_EXPORT void pageloom_silu_mul(const bf16* gate_up, int64_t num_rows, int64_t width, bf16* out) {
  silu_mul_rows(gate_up, width, 0, num_rows, out);
}

PAGELOOM_EXPORT bool pageloom_expert_mlp(ThreadPool* pool, const Experts* experts, const bf16* x, int64_t num_rows,
                                         bf16* out) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    ExpertMlp(*pool).forward(*experts, x, num_rows, out);
  });
}

PAGELOOM_EXPORT void pageloom_rotary_write(const RotaryWrite* layer, bf16* qkv, bf16* kv, int64_t first,
                                           int64_t last) {
  rotary_write_rows(*layer, qkv, kv, first, last);
}

PAGELOOM_EXPORT bool pageloom_attention(ThreadPool* pool, const AttentionShape* shape, const AttentionBatch* batch,
                                        const bf16* query, int64_t query_stride, const bf16* kv, bf16* output,
                                        int64_t output_stride) {
  return succeeds([&] {
    const ThreadPool::Step step(*pool);
    const AttentionPlan plan = plan_attention(*shape, *batch, pool->num_threads());
    const Buffer scratch(plan.scratch_bytes());
    attend(*pool, plan, query, query_stride, kv, output, output_stride, scratch.as<void>());
  });
}
