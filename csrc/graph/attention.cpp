#include "graph/attention.hpp"

#include "bytes/format_error.hpp"

#include <cmath>
#include <string>

namespace wdsbench::graph {

void require_finite(const AttentionView &attention, std::size_t head, std::size_t token,
                    const float *row, std::size_t count) {
  // 0 * x is 0 for every finite x and NaN for all others, so one sum finds them without a branch
  // an element.
  float probe = 0.0F;
  for (std::size_t j = 0; j < count; ++j) {
    probe += 0.0F * row[j];
  }
  if (probe == 0.0F) {
    return;
  }
  for (std::size_t j = 0; j < count; ++j) {
    if (!std::isfinite(row[j])) {
      throw FormatError(FormatKind::value, attention.offset_bytes(head, token, j),
                        "attention of head " + std::to_string(head) + ", token " +
                            std::to_string(token) + " to token " + std::to_string(j) +
                            " is not finite");
    }
  }
}

} // namespace wdsbench::graph
