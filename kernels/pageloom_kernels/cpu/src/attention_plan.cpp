#include "attention_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "attention_item.h"
#include "attention_tiles.h"

namespace pageloom {
namespace {

// A token is a row for each head of a KV head's group; a tile has at most about this many rows.
constexpr int kMostTileRows = 96;
// Rows of all KV heads that an item takes at most, and how much of a span it reads before it computes: what it works
// on stays in the cache.
constexpr int kMostItemRows = 288;
constexpr int kMostSpanBytes = 256 << 10;
// A sequence with more tokens than this computes more than it reads: it looks for nobody to share blocks with, and
// its partials would cost more than they are worth if there is work for every thread without them.
constexpr int kMostLightTokens = 8;
constexpr int kLightItemsPerThread = 4, kHeavyItemsPerThread = 2;
constexpr int64_t kMostHeavyFloats = int64_t{16} << 20;
// Waking the other threads takes longer than adding up this many rows of partials.
constexpr int kFewSums = 512;
// Reading a KV head of a span takes as long as computing this many rows of it.
constexpr int kReadCost = 16;

class Planner {
 public:
  Planner(const AttentionShape& shape, const AttentionBatch& batch, int num_threads)
      : plan_{.shape = shape, .block_size = batch.block_size, .num_threads = num_threads} {
    const int most_rows = std::max(1, kMostTileRows / plan_.group());
    for (int seq = 0; seq < batch.num_seqs; ++seq) {
      const bool is_light = batch.query_start[seq + 1] - batch.query_start[seq] <= kMostLightTokens;
      cut_into_tiles(batch, seq, most_rows, is_light ? light_ : heavy_);
    }
    find_common_spans();
    choose_item_costs();
  }

  AttentionPlan plan() {
    for (const AttentionTile& tile : heavy_) add_heavy(tile);
    for (const AttentionTile& tile : light_) light_rows_.push_back(add_rows(tile));
    share(0, light_.size(), 0);
    deal(items_);
    deal(waiting_items_);
    plan_.first_waiting = static_cast<int>(items_.size());
    plan_.items = std::move(items_);
    plan_.items.insert(plan_.items.end(), waiting_items_.begin(), waiting_items_.end());
    for (const AttentionItem& item : plan_.items) {
      plan_.thread_floats = std::max(plan_.thread_floats, ItemMemory(plan_.shape, item).end());
    }
    return std::move(plan_);
  }

 private:
  struct Spans {
    int first, end;
    int size() const { return end - first; }
  };
  struct Rows {
    int first, count;
    const int32_t* blocks;
  };
  using Parts = std::vector<AttentionPart>;

  void find_common_spans() {
    std::sort(light_.begin(), light_.end(), [this](const AttentionTile& a, const AttentionTile& b) {
      return shares_before(a, b, plan_.block_size);
    });
    common_spans_.resize(light_.size());
    for (size_t i = 1; i < light_.size(); ++i) {
      common_spans_[i] = num_common_spans(light_[i - 1], light_[i], plan_.block_size);
    }
    light_parts_.resize(light_.size());
  }

  int64_t cost(int num_rows, int num_spans, int num_heads) const {
    return int64_t{num_heads} * num_spans * (kReadCost + num_rows * plan_.group());
  }

  void choose_item_costs() {
    int64_t total = 0, num_light_spans = 0;
    for (const AttentionTile& tile : heavy_) total += cost(tile.num_rows, tile.num_spans(), num_heads_);
    for (size_t i = 0; i < light_.size(); ++i) {
      total += cost(light_[i].num_rows, light_[i].num_spans(), num_heads_) - cost(0, common_spans_[i], num_heads_);
      num_light_spans += light_[i].num_spans() - common_spans_[i];
    }
    const bool alone = plan_.num_threads == 1;
    light_cost_ = std::max<int64_t>(1, alone ? total : total / (kLightItemsPerThread * plan_.num_threads));
    heavy_cost_ = std::max<int64_t>(1, alone ? total : total / (kHeavyItemsPerThread * plan_.num_threads));
    // All heads of a page are read faster in one go; but first of all, every thread needs something to do.
    const bool enough = alone || num_light_spans >= kHeavyItemsPerThread * plan_.num_threads;
    light_heads_ = enough ? most_heads_ : 1;
  }

  void add_heavy(const AttentionTile& tile) {
    const Spans spans{0, tile.num_spans()};
    const int64_t head_cost = std::max<int64_t>(1, cost(tile.num_rows, spans.size(), 1));
    const int64_t heads_with_rows = kMostItemRows / (tile.num_rows * plan_.group());
    const int64_t most_heads = std::min(heads_with_rows, heavy_cost_ / head_cost);
    const int heads = static_cast<int>(std::clamp<int64_t>(most_heads, 1, most_heads_));
    const bool may_split = plan_.partial_floats + spans.size() * span_floats(tile.num_rows) <= kMostHeavyFloats;
    add_tile({add_rows(tile), tile.num_rows, tile.blocks}, spans, heads,
             may_split ? num_pieces(spans, heads * head_cost, heavy_cost_) : 1, {});
  }

  // Light tiles of [first, end) have everything before `span` in common, and parts for it already.
  void share(size_t first, size_t end, int span) {
    while (first < end) {
      size_t next = first + 1;
      int common = std::numeric_limits<int>::max();
      for (; next < end && common_spans_[next] > span; ++next) common = std::min(common, common_spans_[next]);
      if (next - first == 1) {
        add_alone(first, span);
      } else {
        add_together(first, next, {span, common});
        share(first, next, common);
      }
      first = next;
    }
  }

  void add_together(size_t first, size_t end, Spans spans) {
    const int most_rows = std::max(1, kMostTileRows / plan_.group());
    while (first < end) {
      size_t next = first;
      int num_rows = 0;
      do {
        num_rows += light_[next++].num_rows;
      } while (next < end && num_rows + light_[next].num_rows <= most_rows);
      const Rows rows{light_rows_[first], num_rows, light_[first].blocks};
      const int pieces = num_pieces(spans, cost(num_rows, spans.size(), light_heads_), light_cost_);
      const AttentionPart part = add_partials(rows, spans, light_heads_, pieces);
      for (; first < next; ++first) light_parts_[first].push_back(part);
    }
  }

  void add_alone(size_t index, int first_span) {
    const AttentionTile& tile = light_[index];
    const Spans spans{first_span, tile.num_spans()};
    const int pieces = num_pieces(spans, cost(tile.num_rows, spans.size(), light_heads_), light_cost_);
    add_tile({light_rows_[index], tile.num_rows, tile.blocks}, spans, light_heads_, pieces,
             std::move(light_parts_[index]));
  }

  static int num_pieces(Spans spans, int64_t cost, int64_t item_cost) {
    return static_cast<int>(std::clamp<int64_t>((cost + item_cost - 1) / item_cost, 1, std::max(1, spans.size())));
  }

  int add_rows(const AttentionTile& tile) {
    const int first = static_cast<int>(plan_.rows.size());
    for (int i = 0; i < tile.num_rows; ++i) {
      plan_.rows.push_back({tile.query_row + i, tile.num_visible == 0 ? 0 : tile.num_visible + i});
    }
    return first;
  }

  // The tokens of a tile from spans.first to the end of their context; `parts` are what is before.
  void add_tile(Rows rows, Spans spans, int heads, int pieces, Parts parts) {
    if (pieces > 1) {
      parts.push_back(add_partials(rows, spans, heads, pieces));
      const int num_sums = spans.size() * rows.count * plan_.shape.num_heads;
      heads = num_sums < kFewSums ? num_heads_ : 1;
      spans.first = spans.end;
    }
    const int first_part = static_cast<int>(plan_.parts.size());
    plan_.parts.insert(plan_.parts.end(), parts.begin(), parts.end());
    const int end_part = static_cast<int>(plan_.parts.size());
    for (int head = 0; head < num_heads_; head += heads) {
      const AttentionItem item{rows.first, rows.count, rows.blocks, spans.first, spans.end, head,
                               std::min(head + heads, num_heads_), -1, first_part, end_part};
      (parts.empty() ? items_ : waiting_items_).push_back(item);
    }
  }

  AttentionPart add_partials(Rows rows, Spans spans, int heads, int pieces) {
    const AttentionPart part{plan_.partial_floats, rows.first, rows.count, spans.size()};
    plan_.partial_floats += spans.size() * span_floats(rows.count);
    for (int head = 0; head < num_heads_; head += heads) {
      for (int piece = 0; piece < pieces; ++piece) {
        const int first = spans.size() * piece / pieces, end = spans.size() * (piece + 1) / pieces;
        items_.push_back({rows.first, rows.count, rows.blocks, spans.first + first, spans.first + end, head,
                          std::min(head + heads, num_heads_), part.partials + first * span_floats(rows.count), 0, 0});
      }
    }
    return part;
  }

  int64_t span_floats(int num_rows) const {
    return num_heads_ * partial_floats(num_rows * plan_.group(), plan_.shape.head_dim);
  }

  // A pool's thread begins with its own share of neighbouring items, so each is dealt some of the large ones first.
  void deal(std::vector<AttentionItem>& items) const {
    std::vector<std::pair<int64_t, size_t>> order;
    for (const AttentionItem& item : items) {
      const int64_t size = cost(item.num_rows, item.end_span - item.first_span, item.end_head - item.first_head);
      order.emplace_back(-size, order.size());
    }
    std::sort(order.begin(), order.end());
    std::vector<AttentionItem> dealt;
    for (int thread = 0; thread < plan_.num_threads; ++thread) {
      for (size_t i = thread; i < order.size(); i += plan_.num_threads) dealt.push_back(items[order[i].second]);
    }
    items = std::move(dealt);
  }

  AttentionPlan plan_;
  const int num_heads_ = plan_.shape.num_kv_heads;
  const int most_heads_ = std::clamp(
      kMostSpanBytes / static_cast<int>(2 * kSpanTokens * plan_.shape.head_dim * sizeof(bf16)), 1, num_heads_);
  std::vector<AttentionTile> heavy_, light_;
  int64_t heavy_cost_, light_cost_;
  int light_heads_;
  std::vector<AttentionItem> items_, waiting_items_;
  // By light tile, in the order of shares_before: what it shares with the one before, its first row, its parts.
  std::vector<int> common_spans_, light_rows_;
  std::vector<Parts> light_parts_;
};

}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, const AttentionBatch& batch, int num_threads) {
  return Planner(shape, batch, num_threads).plan();
}

}  // namespace pageloom
