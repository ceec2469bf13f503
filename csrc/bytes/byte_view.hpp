#pragma once

#include "bytes/format_error.hpp"

#include <cstring>
#include <string>

namespace wdsbench {

/// Bytes of a file. Every read is checked against the bounds; numbers are little-endian.
///
/// Does not own the memory. `base_offset` is the start of the view in its file; errors name file
/// offsets.
class ByteView {
public:
  ByteView(const std::uint8_t *data, std::size_t size, std::uint64_t base_offset = 0)
      : data_(data), size_(size), base_offset_(base_offset) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::uint64_t file_offset(std::size_t at) const { return base_offset_ + at; }

  /// Returns the byte at `at`. Throws FormatError(truncated) past the end.
  [[nodiscard]] std::uint8_t byte(std::size_t at) const {
    require(at, 1);
    return data_[at];
  }

  [[nodiscard]] std::uint16_t u16(std::size_t at) const {
    require(at, 2);
    return static_cast<std::uint16_t>(data_[at] | (data_[at + 1] << 8));
  }

  [[nodiscard]] std::uint32_t u32(std::size_t at) const {
    require(at, 4);
    return static_cast<std::uint32_t>(data_[at]) |
           (static_cast<std::uint32_t>(data_[at + 1]) << 8) |
           (static_cast<std::uint32_t>(data_[at + 2]) << 16) |
           (static_cast<std::uint32_t>(data_[at + 3]) << 24);
  }

  /// Returns whether the bytes at `at` start with `text`; false if the view ends before.
  [[nodiscard]] bool starts_with(std::size_t at, const char *text, std::size_t length) const {
    return at <= size_ && length <= size_ - at && std::memcmp(data_ + at, text, length) == 0;
  }

private:
  void require(std::size_t at, std::size_t count) const {
    if (at > size_ || count > size_ - at) {
      throw FormatError(FormatKind::truncated, file_offset(size_),
                        "needs " + std::to_string(count) + " bytes at " +
                            std::to_string(file_offset(at)) + ", the data ends at " +
                            std::to_string(file_offset(size_)));
    }
  }

  const std::uint8_t *data_;
  std::size_t size_;
  std::uint64_t base_offset_;
};

/// Returns a * b. Throws FormatError(size) if the product does not fit.
inline std::uint64_t checked_product(std::uint64_t a, std::uint64_t b, std::uint64_t offset_bytes) {
  if (b != 0 && a > UINT64_MAX / b) {
    throw FormatError(FormatKind::size, offset_bytes,
                      "the product " + std::to_string(a) + " x " + std::to_string(b) +
                          " does not fit 64 bits");
  }
  return a * b;
}

} // namespace wdsbench
