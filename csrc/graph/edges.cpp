#include "graph/edges.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace wdsbench::graph {

namespace {

/// Writes the mean over heads of the first `token` weights of a row.
void mean_row(const AttentionView &attention, RowReader &reader, std::size_t token,
              std::vector<double> &sum, std::vector<float> &mean) {
  std::fill_n(sum.begin(), token, 0.0);
  for (std::size_t head = 0; head < attention.heads; ++head) {
    const float *row = reader.row(head, token, token);
    require_finite(attention, head, token, row, token);
    for (std::size_t j = 0; j < token; ++j) {
      sum[j] += static_cast<double>(row[j]);
    }
  }
  for (std::size_t j = 0; j < token; ++j) {
    mean[j] = static_cast<float>(sum[j] / static_cast<double>(attention.heads));
  }
}

void append(Edges &edges, std::uint32_t source, std::size_t target, float weight) {
  edges.source.push_back(source);
  edges.target.push_back(static_cast<std::uint32_t>(target));
  edges.weight.push_back(half::narrow_one(weight));
}

} // namespace

Edges mean_edges(const AttentionView &attention, const EdgeRule &rule) {
  Edges edges;
  RowReader reader(attention);
  std::vector<double> sum(attention.tokens);
  std::vector<float> mean(attention.tokens);
  std::vector<std::uint32_t> order(attention.tokens);
  for (std::size_t token = 1; token < attention.tokens; ++token) {
    mean_row(attention, reader, token, sum, mean);
    const auto begin = order.begin();
    auto kept = begin;
    if (rule.kind == EdgeRule::Kind::top_share) {
      const auto share =
          static_cast<std::size_t>(std::floor(rule.value * static_cast<double>(token)));
      const std::size_t count = std::clamp<std::size_t>(share, 1, token);
      const auto end = begin + static_cast<std::ptrdiff_t>(token);
      kept = begin + static_cast<std::ptrdiff_t>(count);
      std::iota(begin, end, 0U);
      std::nth_element(begin, kept - 1, end, [&mean](std::uint32_t a, std::uint32_t b) {
        return mean[a] > mean[b] || (mean[a] == mean[b] && a < b);
      });
      std::sort(begin, kept);
    } else {
      for (std::uint32_t j = 0; j < token; ++j) {
        if (static_cast<double>(mean[j]) >= rule.value) {
          *kept++ = j;
        }
      }
    }
    for (auto source = begin; source != kept; ++source) {
      append(edges, *source, token, mean[*source]);
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
