#pragma once

#include "half/half.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

/// Attention maps as a model returns them.
namespace wdsbench::graph {

/// One layer's attention `[H, T, T]`, C order, float16 bits or float32; entry (h, i, j) is
/// the weight that token i gives to token j. Only j <= i is read.
struct AttentionView {
  const void *data = nullptr;
  bool is_half = false;
  std::size_t heads = 0;
  std::size_t tokens = 0;

  [[nodiscard]] std::size_t element_bytes() const {
    return is_half ? sizeof(std::uint16_t) : sizeof(float);
  }

  /// Returns the place of an element in the map, for errors.
  [[nodiscard]] std::uint64_t offset_bytes(std::size_t head, std::size_t token,
                                           std::size_t at) const {
    return ((head * tokens + token) * tokens + at) * element_bytes();
  }
};

/// Reads rows of a map of either type as float32.
class RowReader {
public:
  explicit RowReader(const AttentionView &attention)
      : attention_(attention), row_(attention.tokens) {}

  /// Returns the first `count` weights of row `token` of `head`; valid until the next call.
  const float *row(std::size_t head, std::size_t token, std::size_t count) {
    const auto *bytes = static_cast<const std::uint8_t *>(attention_.data) +
                        attention_.offset_bytes(head, token, 0);
    if (attention_.is_half) {
      half::chosen_kernel().widen(bytes, row_.data(), count);
    } else {
      std::memcpy(row_.data(), bytes, count * sizeof(float));
    }
    return row_.data();
  }

private:
  const AttentionView &attention_;
  std::vector<float> row_;
};

/// Throws FormatError(value) for the first of `count` weights of a row that is not finite.
void require_finite(const AttentionView &attention, std::size_t head, std::size_t token,
                    const float *row, std::size_t count);

} // namespace wdsbench::graph
