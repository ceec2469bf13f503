#pragma once

#include "bytes/format_error.hpp"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <sys/types.h>

/// Files of members, opened once and read at any place by any thread.
namespace wdsbench::files {

/// How bytes are fetched. `map` copies nothing; `sparse` is a map for which the system reads only
/// the touched pages, for readers that need little of every member; `pread` copies through a buffer
/// that stays in the second-level cache, for file systems that cannot map.
enum class Access : std::uint8_t { map, sparse, pread };

/// One file. If it is truncated or written to while it is read, reads throw FormatError and never
/// crash. Bytes that were read are valid only once `check_unchanged` has returned.
class ShardFile {
public:
  /// Opens `path`. Throws FormatError: io (cannot be opened), truncated (its size is not
  /// `expected_size`). A file that cannot be mapped is read by pread.
  ShardFile(const std::string &path, std::uint64_t expected_size, Access access);
  ~ShardFile();
  ShardFile(const ShardFile &) = delete;
  ShardFile &operator=(const ShardFile &) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

  /// Throws FormatError(truncated) where bytes [offset, offset + count) are not all in the file.
  void require(std::uint64_t offset, std::size_t count) const;

  /// Copies bytes [offset, offset + count) to `out`. Throws FormatError: truncated, io.
  void read(std::uint64_t offset, std::size_t count, void *out) const;

  /// Shows bytes [offset, offset + count) to `work(bytes, at, size)`, `at` counted from `offset`:
  /// in one go from a map, in pieces that are a multiple of 64 bytes (the last one less) otherwise.
  /// `work` may be aborted, so it must own nothing. Throws as `read` does.
  template <typename Work>
  void visit(std::uint64_t offset, std::size_t count, const Work &work) const {
    visit_bytes(
        offset, count,
        [](const void *context, const std::uint8_t *bytes, std::size_t at, std::size_t size) {
          (*static_cast<const Work *>(context))(bytes, at, size);
        },
        &work);
  }

  /// Throws FormatError if the file changed since it was opened: truncated (its size differs), io
  /// (it was written to). A map shows zeros for the part of a page that was cut off, so a read
  /// alone proves nothing.
  void check_unchanged() const;

private:
  using Visitor = void (*)(const void *, const std::uint8_t *, std::size_t, std::size_t);
  void visit_bytes(std::uint64_t offset, std::size_t count, Visitor visitor,
                   const void *context) const;
  [[noreturn]] void throw_fault(std::uint64_t offset, std::size_t count) const;

  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  timespec modified_ = {};
  const std::uint8_t *map_ = nullptr; ///< Null: read by pread.
};

} // namespace wdsbench::files
