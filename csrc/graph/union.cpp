#include "graph/union.hpp"

#include <algorithm>
#include <stdexcept>

namespace wdsbench::graph {

namespace {

void check_layers(const UnionPlan &plan) {
  for (const std::uint64_t layer : plan.layers) {
    if (layer >= plan.layers_stored) {
      throw std::invalid_argument("layer " + std::to_string(layer) + " is not one of the " +
                                  std::to_string(plan.layers_stored) + " stored");
    }
  }
}

/// The union of one sample: which pairs are edges, and their numbers.
class PairTable {
public:
  PairTable(const SampleHeads &sample, const UnionPlan &plan, const char *&member)
      : sample_(sample), plan_(plan), member_(member),
        pointer_(plan.layers_stored * plan.heads + 1), numbers_(sample.tokens * sample.tokens) {
    member = HEAD_NAMES.pointer;
    read_pointer(sample.edges.pointer, pointer_.size() - 1, pointer_.data());
  }

  /// Calls `visit(target * T + source, channel, weight)` for every wanted edge of every head.
  template <typename Visit> void visit(const Visit &visit) {
    const StoredEdges stored(sample_.edges, HEAD_NAMES, pointer_.back(), member_);
    for (std::size_t i = 0; i < plan_.layers.size(); ++i) {
      for (std::size_t head = 0; head < plan_.heads; ++head) {
        const std::size_t list = plan_.layers[i] * plan_.heads + head;
        const std::uint64_t first = pointer_[list];
        const std::uint64_t count = pointer_[list + 1] - first;
        weights_.resize(std::max<std::size_t>(weights_.size(), count));
        stored.check(first, count, sample_.tokens, ListNames{plan_.heads}, list, member_);
        stored.widen_weights(first, count, weights_.data());
        for (std::uint64_t k = 0; k < count; ++k) {
          const std::uint64_t source = stored.edges().source(first + k);
          const std::uint64_t target = stored.edges().target(first + k);
          if (target >= sample_.prompt_length) {
            visit(target * sample_.tokens + source, i * plan_.heads + head, weights_[k]);
          }
        }
      }
    }
  }

  /// Numbers the pairs in order of target, then source; returns how many there are.
  std::uint64_t number() {
    visit([this](std::uint64_t pair, std::size_t, float) { numbers_[pair] = 1; });
    std::uint32_t count = 0;
    for (std::uint32_t &number : numbers_) {
      number = number == 0 ? NONE : count++;
    }
    return count;
  }

  static constexpr std::uint32_t NONE = UINT32_MAX;
  [[nodiscard]] const std::vector<std::uint32_t> &numbers() const { return numbers_; }

private:
  const SampleHeads &sample_;
  const UnionPlan &plan_;
  const char *&member_;
  std::vector<std::uint32_t> pointer_;
  std::vector<std::uint32_t> numbers_;
  std::vector<float> weights_;
};

} // namespace

void count_union_edges(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                       std::int64_t *counts, std::size_t threads) {
  check_layers(plan);
  for_each_sample(samples, threads,
                  [&](std::size_t at, const SampleHeads &sample, const char *&member) {
                    PairTable pairs(sample, plan, member);
                    counts[at] = static_cast<std::int64_t>(pairs.number());
                  });
}

void collate_union(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                   std::int64_t *edge_index, float *edge_attr, std::uint64_t edge_count,
                   std::size_t threads) {
  check_layers(plan);
  const std::size_t channels = plan.layers.size() * plan.heads;
  for_each_sample(
      samples, threads, [&](std::size_t, const SampleHeads &sample, const char *&member) {
        PairTable pairs(sample, plan, member);
        const std::uint64_t count = pairs.number();
        if (sample.edge_base > edge_count || count > edge_count - sample.edge_base) {
          throw std::invalid_argument("a sample's edges end outside the batch buffer");
        }
        const std::vector<std::uint32_t> &numbers = pairs.numbers();
        for (std::uint64_t pair = 0; pair < numbers.size(); ++pair) {
          if (numbers[pair] != PairTable::NONE) {
            std::int64_t *place = edge_index + sample.edge_base + numbers[pair];
            place[0] = static_cast<std::int64_t>(sample.node_base + pair % sample.tokens);
            place[edge_count] = static_cast<std::int64_t>(sample.node_base + pair / sample.tokens);
          }
        }
        float *attr = edge_attr + sample.edge_base * channels;
        std::fill_n(attr, count * channels, 0.0F);
        pairs.visit([&](std::uint64_t pair, std::size_t channel, float weight) {
          attr[numbers[pair] * channels + channel] = weight;
        });
      });
}

} // namespace wdsbench::graph
