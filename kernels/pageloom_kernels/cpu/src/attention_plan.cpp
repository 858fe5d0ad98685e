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
// Rows of all KV heads that an item takes at most, so that what it holds stays in the cache.
constexpr int kMostItemRows = 288;
// A sequence with more tokens than this computes more than it reads: it looks for nobody to share blocks with, and
// its partials would cost more than they are worth if there is work for every thread without them.
constexpr int kMostLightTokens = 8;
constexpr int kLightItemsPerThread = 4, kHeavyItemsPerThread = 2;
constexpr int64_t kMostHeavyFloats = int64_t{16} << 20;
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
    choose_item_costs();
  }

  AttentionPlan plan() {
    for (const AttentionTile& tile : heavy_) add_heavy(tile);
    add_light();
    deal_items();
    for (const AttentionItem& item : plan_.items) {
      plan_.thread_floats = std::max(plan_.thread_floats, ItemMemory(plan_.shape, item).end());
    }
    for (const AttentionMerge& merge : plan_.merges) {
      plan_.thread_floats = std::max(plan_.thread_floats, span_floats(merge.num_rows) / num_heads_);
    }
    return std::move(plan_);
  }

 private:
  struct Spans {
    int first, end;
    int size() const { return end - first; }
  };

  int64_t cost(int num_rows, int num_spans, int num_heads) const {
    return int64_t{num_heads} * num_spans * (kReadCost + num_rows * plan_.group());
  }

  void choose_item_costs() {
    int64_t total = 0, num_light_spans = 0;
    for (const auto* tiles : {&heavy_, &light_}) {
      for (const AttentionTile& tile : *tiles) total += cost(tile.num_rows, tile.num_spans(), num_heads_);
    }
    for (const AttentionTile& tile : light_) num_light_spans += tile.num_spans();
    light_cost_ = std::max<int64_t>(1, total / (kLightItemsPerThread * plan_.num_threads));
    heavy_cost_ = std::max<int64_t>(1, total / (kHeavyItemsPerThread * plan_.num_threads));
    // All heads of a page are read faster in one go; but first of all, every thread needs something to do.
    light_heads_ = num_light_spans < kHeavyItemsPerThread * plan_.num_threads ? 1 : num_heads_;
  }

  void add_heavy(const AttentionTile& tile) {
    const int num_spans = tile.num_spans();
    const int64_t head_cost = std::max<int64_t>(1, cost(tile.num_rows, num_spans, 1));
    const int64_t most_heads =
        std::min<int64_t>(kMostItemRows / (tile.num_rows * plan_.group()), heavy_cost_ / head_cost);
    const int heads = static_cast<int>(std::clamp<int64_t>(most_heads, 1, num_heads_));
    const bool may_split = plan_.partial_floats + num_spans * span_floats(tile.num_rows) <= kMostHeavyFloats;
    const int pieces = may_split ? num_pieces(num_spans, heads * head_cost, heavy_cost_) : 1;
    const int first_row = add_rows(tile);
    if (pieces == 1) return add_items(first_row, tile.num_rows, tile.blocks, {0, num_spans}, heads, 1, kNoPartials);
    merge(first_row, tile.num_rows,
          {add_partials(first_row, tile.num_rows, tile.blocks, {0, num_spans}, heads, pieces)});
  }

  void add_light() {
    std::sort(light_.begin(), light_.end(), [this](const AttentionTile& a, const AttentionTile& b) {
      return shares_before(a, b, plan_.block_size);
    });
    for (size_t i = 0; i < light_.size(); ++i) {
      light_rows_.push_back(add_rows(light_[i]));
      common_spans_.push_back(i == 0 ? 0 : num_common_spans(light_[i - 1], light_[i], plan_.block_size));
    }
    light_parts_.resize(light_.size());
    share(0, light_.size(), 0);
    for (size_t i = 0; i < light_.size(); ++i) {
      if (!light_parts_[i].empty()) merge(light_rows_[i], light_[i].num_rows, light_parts_[i]);
    }
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
      const int pieces = num_pieces(spans.size(), cost(num_rows, spans.size(), light_heads_), light_cost_);
      const AttentionPart part =
          add_partials(light_rows_[first], num_rows, light_[first].blocks, spans, light_heads_, pieces);
      for (; first < next; ++first) light_parts_[first].push_back(part);
    }
  }

  void add_alone(size_t index, int first_span) {
    const AttentionTile& tile = light_[index];
    const Spans spans{first_span, tile.num_spans()};
    const int pieces = num_pieces(spans.size(), cost(tile.num_rows, spans.size(), light_heads_), light_cost_);
    if (first_span == 0 && pieces == 1) {
      add_items(light_rows_[index], tile.num_rows, tile.blocks, spans, light_heads_, 1, kNoPartials);
    } else if (spans.size() > 0) {
      light_parts_[index].push_back(
          add_partials(light_rows_[index], tile.num_rows, tile.blocks, spans, light_heads_, pieces));
    }
  }

  int64_t span_floats(int num_rows) const {
    return num_heads_ * partial_floats(num_rows * plan_.group(), plan_.shape.head_dim);
  }

  static int num_pieces(int num_spans, int64_t cost, int64_t item_cost) {
    return static_cast<int>(std::clamp<int64_t>((cost + item_cost - 1) / item_cost, 1, std::max(1, num_spans)));
  }

  int add_rows(const AttentionTile& tile) {
    const int first = static_cast<int>(plan_.rows.size());
    for (int i = 0; i < tile.num_rows; ++i) {
      plan_.rows.push_back({tile.query_row + i, tile.num_visible == 0 ? 0 : tile.num_visible + i});
    }
    return first;
  }

  AttentionPart add_partials(int first_row, int num_rows, const int32_t* blocks, Spans spans, int heads, int pieces) {
    const AttentionPart part{plan_.partial_floats, first_row, num_rows, spans.size()};
    plan_.partial_floats += spans.size() * span_floats(num_rows);
    add_items(first_row, num_rows, blocks, spans, heads, pieces, part.partials);
    return part;
  }

  void add_items(int first_row, int num_rows, const int32_t* blocks, Spans spans, int heads, int pieces,
                 int64_t partials) {
    for (int head = 0; head < num_heads_; head += heads) {
      for (int piece = 0; piece < pieces; ++piece) {
        const int first = spans.size() * piece / pieces, end = spans.size() * (piece + 1) / pieces;
        plan_.items.push_back({first_row, num_rows, blocks, spans.first + first, spans.first + end, head,
                               std::min(head + heads, num_heads_),
                               partials == kNoPartials ? kNoPartials : partials + first * span_floats(num_rows)});
      }
    }
  }

  void merge(int first_row, int num_rows, const std::vector<AttentionPart>& parts) {
    const int first_part = static_cast<int>(plan_.parts.size());
    plan_.parts.insert(plan_.parts.end(), parts.begin(), parts.end());
    plan_.merges.push_back({first_row, num_rows, first_part, static_cast<int>(plan_.parts.size())});
  }

  // A pool's thread begins with its own share of neighbouring items, so each is dealt some of the large ones first.
  void deal_items() {
    std::vector<std::pair<int64_t, int>> order;
    for (const AttentionItem& item : plan_.items) {
      const int64_t size = cost(item.num_rows, item.end_span - item.first_span, item.end_head - item.first_head);
      order.emplace_back(-size, static_cast<int>(order.size()));
    }
    std::sort(order.begin(), order.end());
    std::vector<AttentionItem> dealt;
    for (int thread = 0; thread < plan_.num_threads; ++thread) {
      for (size_t i = thread; i < order.size(); i += plan_.num_threads) dealt.push_back(plan_.items[order[i].second]);
    }
    plan_.items = std::move(dealt);
  }

  static constexpr int64_t kNoPartials = -1;

  AttentionPlan plan_;
  const int num_heads_ = plan_.shape.num_kv_heads;
  std::vector<AttentionTile> heavy_, light_;
  int64_t heavy_cost_, light_cost_;
  int light_heads_;
  // By light tile, in the order of shares_before: its first row, what it shares with the one before, its parts.
  std::vector<int> light_rows_, common_spans_;
  std::vector<std::vector<AttentionPart>> light_parts_;
};

}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, const AttentionBatch& batch, int num_threads) {
  return Planner(shape, batch, num_threads).plan();
}

}  // namespace pageloom
