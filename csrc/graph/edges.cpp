#include "graph/edges.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

namespace wdsbench::graph {

namespace {

// One binary for every processor: the compiler makes a variant for each and the loader picks one.
#if defined(__x86_64__) && defined(__linux__)
#define WDSBENCH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WDSBENCH_CLONES
#endif

/// Heads that are added in one pass over the sums.
constexpr std::size_t HEADS_AT_ONCE = 4;

WDSBENCH_CLONES void add_one(const float *values, double *sums, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    sums[k] += static_cast<double>(values[k]);
  }
}

/// Adds HEADS_AT_ONCE maps of `count` elements that lie one after the other, each sum in their
/// order: the sums, which fill the first-level cache, are loaded and stored once for all of them.
WDSBENCH_CLONES void add_several(const float *values, double *sums, std::size_t count) {
  static_assert(HEADS_AT_ONCE == 4);
  for (std::size_t k = 0; k < count; ++k) {
    double sum = sums[k] + static_cast<double>(values[k]);
    sum += static_cast<double>(values[count + k]);
    sum += static_cast<double>(values[2 * count + k]);
    sums[k] = sum + static_cast<double>(values[3 * count + k]);
  }
}

/// Returns the mean over heads, float32 `[T, T]`; entries above the diagonal are meaningless.
///
/// Whole maps are added, including entries above the diagonal. A sum is finite if and only if all
/// its terms are, so one check of the sums covers all heads.
std::vector<float> mean_map(const AttentionView &attention) {
  const std::size_t tokens = attention.tokens;
  const std::size_t elements = tokens * tokens;
  std::vector<double> sums(elements, 0.0);
  std::vector<float> map(elements * std::min(HEADS_AT_ONCE, attention.heads));
  for (std::size_t head = 0; head < attention.heads;) {
    const std::size_t heads = std::min(HEADS_AT_ONCE, attention.heads - head);
    const auto *bytes =
        static_cast<const std::uint8_t *>(attention.data) + attention.offset_bytes(head, 0, 0);
    if (attention.is_half) {
      half::chosen_kernel().widen(bytes, map.data(), heads * elements);
    } else {
      std::memcpy(map.data(), bytes, heads * elements * sizeof(float));
    }
    if (heads == HEADS_AT_ONCE) {
      add_several(map.data(), sums.data(), elements);
    } else {
      for (std::size_t i = 0; i < heads; ++i) {
        add_one(map.data() + i * elements, sums.data(), elements);
      }
    }
    head += heads;
  }
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t j = 0; j < token; ++j) {
      const double sum = sums[token * tokens + j];
      if (!std::isfinite(sum)) {
        RowReader reader(attention);
        for (std::size_t head = 0; head < attention.heads; ++head) {
          require_finite(attention, head, token, reader.row(head, token, token), token);
        }
      }
      map[token * tokens + j] = static_cast<float>(sum / static_cast<double>(attention.heads));
    }
  }
  return map;
}

/// Rows of at most so many weights are ranked by comparing all pairs: quadratic, and without a
/// branch that could be predicted wrongly (edges of [32, 32, 64, 64] in 1.9 instead of 2.7 ms).
constexpr std::size_t RANKED_MOST = 128;

/// Counts for each of `count` weights those that come before it: heavier, or equal with a smaller
/// index.
WDSBENCH_CLONES void rank_pairs(const float *weights, std::size_t count, std::uint32_t *ranks) {
  std::fill_n(ranks, count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const float weight = weights[i];
    for (std::size_t j = 0; j < i; ++j) {
      ranks[j] += weight > weights[j] ? 1 : 0;
    }
    for (std::size_t j = i + 1; j < count; ++j) {
      ranks[j] += weight >= weights[j] ? 1 : 0;
    }
  }
}

/// Chooses the heaviest of a token's predecessors, of equals the smaller index.
class Heaviest {
public:
  /// Returns the `count` heaviest of `weights[0, token)`, ascending; valid until the next call.
  const std::vector<std::uint32_t> &keep(const float *weights, std::size_t token,
                                         std::size_t count) {
    kept_.clear();
    if (token <= RANKED_MOST) {
      keep_by_rank(weights, token, count);
    } else {
      keep_by_least(weights, token, count);
    }
    return kept_;
  }

private:
  void keep_by_rank(const float *weights, std::size_t token, std::size_t count) {
    rank_pairs(weights, token, ranks_.data());
    kept_.resize(token + 1); // one more: every index is written, and stays where its rank is low
    std::size_t kept = 0;
    for (std::uint32_t j = 0; j < token; ++j) {
      kept_[kept] = j;
      kept += ranks_[j] < count ? 1 : 0;
    }
    kept_.resize(kept);
  }

  /// Finds the count-th weight first; keeps all heavier ones, then equal ones until `count` are
  /// kept.
  void keep_by_least(const float *weights, std::size_t token, std::size_t count) {
    sorted_.assign(weights, weights + token);
    const auto last = sorted_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(sorted_.begin(), last, sorted_.end(), std::greater<>());
    const float least = *last;
    const auto above = static_cast<std::size_t>(
        std::count_if(weights, weights + token, [least](float weight) { return weight > least; }));
    std::size_t equals = count - above;
    for (std::uint32_t j = 0; j < token; ++j) {
      if (weights[j] > least || (weights[j] == least && equals > 0)) {
        equals -= weights[j] == least ? 1 : 0;
        kept_.push_back(j);
      }
    }
  }

  std::array<std::uint32_t, RANKED_MOST> ranks_{};
  std::vector<float> sorted_;
  std::vector<std::uint32_t> kept_;
};

void append(Edges &edges, std::uint32_t source, std::size_t target, float weight) {
  edges.source.push_back(source);
  edges.target.push_back(static_cast<std::uint32_t>(target));
  edges.weight.push_back(half::narrow_one(weight));
}

} // namespace

Edges mean_edges(const AttentionView &attention, const EdgeRule &rule) {
  Edges edges;
  const std::vector<float> map = mean_map(attention);
  Heaviest heaviest;
  for (std::size_t token = 1; token < attention.tokens; ++token) {
    const float *mean = map.data() + token * attention.tokens;
    if (rule.kind == EdgeRule::Kind::top_share) {
      const auto share =
          static_cast<std::size_t>(std::floor(rule.value * static_cast<double>(token)));
      for (const std::uint32_t source :
           heaviest.keep(mean, token, std::clamp<std::size_t>(share, 1, token))) {
        append(edges, source, token, mean[source]);
      }
    } else {
      for (std::uint32_t j = 0; j < token; ++j) {
        if (static_cast<double>(mean[j]) >= rule.value) {
          append(edges, j, token, mean[j]);
        }
      }
    }
  }
  return edges;
}

void append_head_edges(const AttentionView &attention, std::size_t head, double threshold,
                       Edges &edges) {
  RowReader reader(attention);
  for (std::size_t token = 1; token < attention.tokens; ++token) {
    const float *row = reader.row(head, token, token);
    require_finite(attention, head, token, row, token);
    for (std::uint32_t j = 0; j < token; ++j) {
      if (static_cast<double>(row[j]) >= threshold) {
        append(edges, j, token, row[j]);
      }
    }
  }
}

} // namespace wdsbench::graph
