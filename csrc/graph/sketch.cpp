#include "graph/sketch.hpp"

#include <cmath>
#include <limits>

namespace wdsbench::graph {

namespace {

double entropy_of(const float *row, std::size_t count) {
  double sum = 0.0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto weight = static_cast<double>(row[j]);
    if (weight > 0.0) {
      sum -= weight * std::log(weight);
    }
  }
  return sum;
}

double mean_of(const float *first, std::size_t count) {
  double sum = 0.0;
  for (std::size_t j = 0; j < count; ++j) {
    sum += static_cast<double>(first[j]);
  }
  return sum / static_cast<double>(count);
}

double lookback_of(const float *row, std::size_t token, std::size_t prompt) {
  if (prompt == NO_PROMPT || token < prompt || prompt == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double context = mean_of(row, prompt);
  const double fresh = mean_of(row + prompt, token + 1 - prompt);
  const double both = context + fresh;
  return both > 0.0 ? context / both : std::numeric_limits<double>::quiet_NaN();
}

} // namespace

void sketch_head(const AttentionView &attention, std::size_t head, std::size_t prompt_length,
                 float *out) {
  RowReader reader(attention);
  const std::size_t tokens = attention.tokens;
  std::vector<double> received(tokens, 0.0);
  for (std::size_t token = 0; token < tokens; ++token) {
    const float *row = reader.row(head, token, token + 1);
    require_finite(attention, head, token, row, token + 1);
    for (std::size_t j = 0; j <= token; ++j) {
      received[j] += static_cast<double>(row[j]);
    }
    float *values = out + token * SKETCH_VALUES;
    values[static_cast<std::size_t>(SketchValue::self_attention)] = row[token];
    values[static_cast<std::size_t>(SketchValue::lookback)] =
        static_cast<float>(lookback_of(row, token, prompt_length));
    values[static_cast<std::size_t>(SketchValue::entropy)] =
        static_cast<float>(entropy_of(row, token + 1));
  }
  for (std::size_t token = 0; token < tokens; ++token) {
    float *values = out + token * SKETCH_VALUES;
    const auto self =
        static_cast<double>(values[static_cast<std::size_t>(SketchValue::self_attention)]);
    const double degree = received[token] / static_cast<double>(tokens - token);
    values[static_cast<std::size_t>(SketchValue::laplacian)] = static_cast<float>(degree - self);
  }
}

} // namespace wdsbench::graph
