#include "graph/edges.hpp"

#include "bytes/format_error.hpp"
#include "half/half.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

namespace wdsbench::graph {

namespace {

/// Reads rows of a map as float32, whatever it is stored in.
class RowReader {
public:
  explicit RowReader(const AttentionView &attention)
      : attention_(attention), row_(attention.tokens) {}

  /// Returns the first `count` weights of row `token` of `head`; valid until the next call.
  const float *row(std::size_t head, std::size_t token, std::size_t count) {
    const std::size_t start = (head * attention_.tokens + token) * attention_.tokens;
    const auto *bytes = static_cast<const std::uint8_t *>(attention_.data);
    if (attention_.is_half) {
      half::chosen_kernel().widen(bytes + start * sizeof(std::uint16_t), row_.data(), count);
    } else {
      std::memcpy(row_.data(), bytes + start * sizeof(float), count * sizeof(float));
    }
    return row_.data();
  }

  [[nodiscard]] std::uint64_t offset_bytes(std::size_t head, std::size_t token,
                                           std::size_t at) const {
    const std::size_t width = attention_.is_half ? sizeof(std::uint16_t) : sizeof(float);
    return ((head * attention_.tokens + token) * attention_.tokens + at) * width;
  }

private:
  const AttentionView &attention_;
  std::vector<float> row_;
};

void mean_row(RowReader &reader, std::size_t heads, std::size_t token, std::vector<double> &sum,
              std::vector<float> &mean) {
  std::fill(sum.begin(), sum.begin() + static_cast<std::ptrdiff_t>(token), 0.0);
  for (std::size_t head = 0; head < heads; ++head) {
    const float *row = reader.row(head, token, token);
    for (std::size_t j = 0; j < token; ++j) {
      if (!std::isfinite(row[j])) {
        throw FormatError(FormatKind::value, reader.offset_bytes(head, token, j),
                          "attention of head " + std::to_string(head) + ", token " +
                              std::to_string(token) + " to token " + std::to_string(j) +
                              " is not finite");
      }
      sum[j] += static_cast<double>(row[j]);
    }
  }
  for (std::size_t j = 0; j < token; ++j) {
    mean[j] = static_cast<float>(sum[j] / static_cast<double>(heads));
  }
}

} // namespace

Edges mean_edges(const AttentionView &attention, const EdgeRule &rule) {
  Edges edges;
  RowReader reader(attention);
  std::vector<double> sum(attention.tokens);
  std::vector<float> mean(attention.tokens);
  std::vector<std::uint32_t> order(attention.tokens);
  for (std::size_t token = 1; token < attention.tokens; ++token) {
    mean_row(reader, attention.heads, token, sum, mean);
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
      edges.source.push_back(*source);
      edges.target.push_back(static_cast<std::uint32_t>(token));
      edges.weight.push_back(half::narrow_one(mean[*source]));
    }
  }
  return edges;
}

} // namespace wdsbench::graph
