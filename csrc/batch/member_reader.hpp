#pragma once

#include "files/shard_file.hpp"
#include "npy/header.hpp"

namespace wdsbench::batch {

/// The place of a member's bytes in an open file. The caller keeps the file open.
struct MemberRef {
  const files::ShardFile *file = nullptr;
  std::uint64_t offset_bytes = 0; ///< Of the member's data in the file.
  std::uint64_t size_bytes = 0;   ///< 0: the sample has no such member.
};

/// Reads one npy member in pieces. A file that shrinks meanwhile is an error with its offset, never
/// a crash.
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
  void read(std::uint64_t at, std::size_t count, void *out) const {
    ref_.file->read(payload_offset(at), count, out);
  }

  /// Passes payload bytes [at, at + count) to `work(bytes, at, size)`; see ShardFile::visit.
  template <typename Work> void visit(std::uint64_t at, std::size_t count, const Work &work) const {
    ref_.file->visit(payload_offset(at), count, work);
  }

private:
  MemberRef ref_;
  npy::Header header_;
};

} // namespace wdsbench::batch
