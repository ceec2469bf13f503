#pragma once

#include "npy/header.hpp"

#include <vector>

namespace wdsbench::batch {

/// Where a member's bytes lie in an open file. The caller keeps the file open.
struct MemberRef {
  int fd = -1;
  std::uint64_t offset_bytes = 0; ///< Of the member's data in the file.
  std::uint64_t size_bytes = 0;   ///< 0: the sample has no such member.
};

/// Reads one npy member in pieces. A file that shrinks under the reader is an error with its
/// offset, never a crash: bytes are fetched with pread, not through a map.
class MemberReader {
public:
  /// Reads and checks the header. Throws FormatError with file offsets.
  explicit MemberReader(const MemberRef &ref);

  [[nodiscard]] const npy::Header &header() const { return header_; }

  /// Returns the file offset of payload byte `at`, for errors.
  [[nodiscard]] std::uint64_t payload_offset(std::uint64_t at) const {
    return ref_.offset_bytes + header_.payload_offset + at;
  }

  /// Copies payload bytes [at, at + count) to `out`. The range must lie inside the payload.
  void read(std::uint64_t at, std::size_t count, void *out) const;

  /// Returns payload bytes [at, at + count), read into `scratch`, which grows as needed; valid
  /// while it is left alone.
  const std::uint8_t *view(std::uint64_t at, std::size_t count,
                           std::vector<std::uint8_t> &scratch) const;

private:
  MemberRef ref_;
  npy::Header header_;
};

} // namespace wdsbench::batch
