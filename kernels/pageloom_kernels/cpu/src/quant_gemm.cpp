// How are rows multiplied by a quantized matrix? Their bytes first, then tiles times groups of rows.

#include <algorithm>
#include <cstring>

#include "argmax.h"
#include "quant_format.h"
#include "quant_matrix.h"

namespace pageloom {
namespace {

// Fewer elements are quantized sooner than another thread starts to help.
constexpr int64_t kAloneElements = 8192;
// What an item is at most: so many groups of rows times so many bytes of weights, a stream that memory is fast for.
constexpr int64_t kItemGroups = 16;
constexpr int64_t kItemBytes = int64_t{64} << 10;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The rows of codes of one product, at the start of the scratch memory.
class Groups {
 public:
  Groups(void* scratch, int64_t num_rows, const QuantMatrix& matrix)
      : bytes_(static_cast<uint8_t*>(scratch)),
        num_code_rows_(num_rows * matrix.codes_per_input),
        group_bytes_(activation_bytes(kGroupRows, matrix.in_features)) {}

  int64_t count() const { return (num_code_rows_ + kGroupRows - 1) / kGroupRows; }
  int code_rows_of(int64_t group) const {
    return static_cast<int>(std::min<int64_t>(kGroupRows, num_code_rows_ - group * kGroupRows));
  }
  uint8_t* at(int64_t group) const { return bytes_ + group * group_bytes_; }

 private:
  uint8_t* bytes_;
  int64_t num_code_rows_, group_bytes_;
};

void quantize(ThreadPool& pool, const bf16* x, int64_t x_stride, const QuantMatrix& matrix, const Groups& groups) {
  const int codes = matrix.codes_per_input;
  const int64_t in_features = matrix.in_features;
  const auto quantize_one = [&](int group, int) {
    const bf16* rows = x + group * (kGroupRows / codes) * x_stride;
    quantize_group(rows, x_stride, groups.code_rows_of(group), codes, in_features, groups.at(group));
  };
  if (groups.count() * kGroupRows * in_features > kAloneElements) {
    pool.run(static_cast<int>(groups.count()), quantize_one);
  } else {
    for (int group = 0; group < groups.count(); ++group) quantize_one(group, 0);
  }
}

// One group times tiles [first, end) of a part: output(row, first_output, end_output, results).
template <class Output>
void multiply_group(const QuantMatrix& matrix, const QuantPart& part, int64_t first, int64_t end,
                    const Groups& groups, int64_t group, const Output& output) {
  const int codes = matrix.codes_per_input, num_code_rows = groups.code_rows_of(group);
  const auto multiply_tile = part.format->multiply_tile[num_code_rows];
  for (int64_t tile = first; tile < end; ++tile) {
    Floats results[kGroupRows];
    multiply_tile(part.tiles + tile * part.tile_bytes, matrix.in_features, groups.at(group), results);
    const int64_t first_output = part.first_output + tile * kLanes;
    const int64_t end_output = part.first_output + std::min(part.num_outputs, (tile + 1) * kLanes);
    for (int row = 0; row < num_code_rows / codes; ++row) {
      const Floats result = codes == 1 ? results[row] : add(results[2 * row], results[2 * row + 1]);
      output(group * (kGroupRows / codes) + row, first_output, end_output, result);
    }
  }
}

// Groups [first_group, end_group) times tiles [first, end), counted through all parts. A group stays in the level 1
// cache while it meets the tiles, which stay in level 2.
template <class Output>
void multiply_item(const QuantMatrix& matrix, int64_t first, int64_t end, const Groups& groups, int64_t first_group,
                   int64_t end_group, const Output& output) {
  for (const QuantPart& part : matrix.parts) {
    for (int64_t group = first_group; group < end_group; ++group) {
      multiply_group(matrix, part, std::max<int64_t>(first, 0), std::min(end, part.num_tiles), groups, group, output);
    }
    first -= part.num_tiles;
    end -= part.num_tiles;
  }
}

// Calls output(thread, row, first_output, end_output, results) for all rows and outputs.
template <class Output>
void multiply(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
              void* scratch, const Output& output) {
  const Groups groups(scratch, num_rows, matrix);
  quantize(pool, x, x_stride, matrix, groups);
  int64_t num_tiles = 0, num_bytes = 0;
  for (const QuantPart& part : matrix.parts) {
    num_tiles += part.num_tiles;
    num_bytes += part.num_tiles * part.tile_bytes;
  }
  // A multiple of the threads, so that each has as many tiles to begin with.
  const int64_t tile_items = std::min(num_tiles, round_up(num_bytes / kItemBytes + 1, pool.num_threads()));
  const int64_t group_items = (groups.count() + kItemGroups - 1) / kItemGroups;
  pool.run(static_cast<int>(group_items * tile_items), [&](int item, int thread) {
    const int64_t first_group = item / tile_items * kItemGroups, index = item % tile_items;
    multiply_item(matrix, index * num_tiles / tile_items, (index + 1) * num_tiles / tile_items, groups, first_group,
                  std::min(first_group + kItemGroups, groups.count()),
                  [&](int64_t row, int64_t first, int64_t end, Floats results) {
                    output(thread, row, first, end, results);
                  });
  });
}

int64_t group_bytes(const QuantMatrix& matrix, int64_t num_rows) {
  return round_up(activation_bytes(num_rows * matrix.codes_per_input, matrix.in_features), kScratchAlignment);
}

}  // namespace

size_t quant_scratch_bytes(const QuantMatrix& matrix, int64_t num_rows, int num_threads) {
  return static_cast<size_t>(group_bytes(matrix, num_rows) +
                             num_rows * num_threads * static_cast<int64_t>(sizeof(Best)));
}

void quant_gemm(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride, int64_t num_rows,
                const bf16* bias, bf16* y, int64_t y_stride, void* scratch) {
  multiply(pool, matrix, x, x_stride, num_rows, scratch,
           [&](int, int64_t row, int64_t first, int64_t end, Floats results) {
             alignas(64) bf16 lanes[kLanes] = {};
             const size_t num_bytes = static_cast<size_t>(end - first) * sizeof(bf16);
             if (bias != nullptr) {
               std::memcpy(lanes, bias + first, num_bytes);
               results = add(results, load_bf16(lanes));
             }
             bf16* target = y + row * y_stride + first;
             if (end - first == kLanes) return store_bf16(target, results);
             store_bf16(lanes, results);
             std::memcpy(target, lanes, num_bytes);
           });
}

void quant_gemm_float(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride,
                      int64_t num_rows, float* y, void* scratch) {
  multiply(pool, matrix, x, x_stride, num_rows, scratch,
           [&](int, int64_t row, int64_t first, int64_t end, const Floats& results) {
             std::memcpy(y + row * matrix.out_features + first, &results,
                         static_cast<size_t>(end - first) * sizeof(float));
           });
}

void quant_gemm_argmax(ThreadPool& pool, const QuantMatrix& matrix, const bf16* x, int64_t x_stride,
                       int64_t num_rows, int64_t* winners, void* scratch) {
  uint8_t* const after_groups = static_cast<uint8_t*>(scratch) + group_bytes(matrix, num_rows);
  Best* bests = reinterpret_cast<Best*>(after_groups);  // [num_threads, num_rows]
  std::fill_n(bests, num_rows * pool.num_threads(), Best{});
  multiply(pool, matrix, x, x_stride, num_rows, scratch,
           [&](int thread, int64_t row, int64_t first, int64_t end, Floats results) {
             const Floats outputs[] = {results};
             bests[thread * num_rows + row].take(outputs, first, end);
           });
  for (int64_t row = 0; row < num_rows; ++row) winners[row] = winner(bests, pool.num_threads(), num_rows, row);
}

}  // namespace pageloom
