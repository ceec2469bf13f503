#include "files/shard_file.hpp"

#include "bytes/file_read.hpp"
#include "files/bus_guard.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace wdsbench::files {

namespace {

/// Bytes that pread fetches at a time: they stay in the second-level cache until they are
/// used. 64 to 512 KiB measured the same.
constexpr std::size_t SCRATCH_BYTES = std::size_t{256} * 1024;

timespec modification_time(const struct stat &status) {
#if defined(__APPLE__)
  return status.st_mtimespec;
#else
  return status.st_mtim;
#endif
}

std::string system_words(const char *what) {
  return std::string(what) + ": " + std::strerror(errno);
}

std::string bytes_missing(std::uint64_t count) {
  return "the file ends here, " + std::to_string(count) + " bytes of the member are missing";
}

} // namespace

ShardFile::ShardFile(const std::string &path, std::uint64_t expected_size, Access access) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) {
    const char *remedy = errno == EMFILE ? "; raise the limit with ulimit -n" : "";
    throw FormatError(FormatKind::io, 0, system_words("cannot open") + remedy);
  }
  struct stat status = {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  size_ = static_cast<std::uint64_t>(status.st_size);
  modified_ = modification_time(status);
  if (!known || size_ != expected_size) {
    ::close(descriptor_);
    if (!known) {
      throw FormatError(FormatKind::io, 0, system_words("cannot read"));
    }
    throw FormatError(FormatKind::truncated, std::min(size_, expected_size),
                      "has " + std::to_string(size_) + " bytes, the index says " +
                          std::to_string(expected_size) +
                          "; the shard was cut or replaced: pack it again");
  }
  if (access != Access::pread && size_ > 0) {
    void *map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
    map_ = map == MAP_FAILED ? nullptr : static_cast<const std::uint8_t *>(map);
    if (map_ != nullptr && access == Access::sparse) {
      static_cast<void>(::madvise(map, size_, MADV_RANDOM));
    }
  }
}

ShardFile::~ShardFile() {
  if (map_ != nullptr) {
    ::munmap(const_cast<std::uint8_t *>(map_), size_);
  }
  ::close(descriptor_);
}

void ShardFile::require(std::uint64_t offset, std::size_t count) const {
  if (offset > size_ || count > size_ - offset) {
    const std::uint64_t end = std::max(offset, size_);
    throw FormatError(FormatKind::truncated, end, bytes_missing(count - (end - offset)));
  }
}

void ShardFile::throw_fault(std::uint64_t offset, std::size_t count) const {
  struct stat status = {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (known && size < offset + count) {
    const std::uint64_t end = std::max(offset, size);
    throw FormatError(FormatKind::truncated, end, bytes_missing(offset + count - end));
  }
  throw FormatError(FormatKind::io, offset,
                    "the pages could not be read: the disk fails, or the file was truncated and "
                    "rewritten meanwhile");
}

void ShardFile::read(std::uint64_t offset, std::size_t count, void *out) const {
  if (map_ == nullptr) {
    read_exactly(descriptor_, offset, count, out);
    return;
  }
  auto *target = static_cast<std::uint8_t *>(out);
  visit(offset, count, [target](const std::uint8_t *bytes, std::size_t at, std::size_t size) {
    std::memcpy(target + at, bytes, size);
  });
}

void ShardFile::visit_bytes(std::uint64_t offset, std::size_t count, Visitor visitor,
                            const void *context) const {
  require(offset, count);
  if (map_ != nullptr) {
    struct Call {
      Visitor visitor;
      const void *context;
      const std::uint8_t *bytes;
      std::size_t count;
    } call{visitor, context, map_ + offset, count};
    const bool whole = guarded(
        call.bytes, count,
        [](void *argument) {
          const auto *made = static_cast<const Call *>(argument);
          made->visitor(made->context, made->bytes, 0, made->count);
        },
        &call);
    if (!whole) {
      throw_fault(offset, count);
    }
    return;
  }
  thread_local std::vector<std::uint8_t> scratch(SCRATCH_BYTES);
  for (std::size_t at = 0; at < count; at += SCRATCH_BYTES) {
    const std::size_t size = std::min(SCRATCH_BYTES, count - at);
    read_exactly(descriptor_, offset + at, size, scratch.data());
    visitor(context, scratch.data(), at, size);
  }
}

void ShardFile::check_unchanged() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) {
    throw FormatError(FormatKind::io, 0, system_words("cannot read"));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size != size_) {
    throw FormatError(FormatKind::truncated, std::min(size, size_),
                      "has " + std::to_string(size) + " bytes, " + std::to_string(size_) +
                          " when it was opened: it was cut or replaced while it was read");
  }
  const timespec modified = modification_time(status);
  if (modified.tv_sec != modified_.tv_sec || modified.tv_nsec != modified_.tv_nsec) {
    throw FormatError(
        FormatKind::io, 0,
        "was written to since it was opened (its modification time has changed); open the "
        "data set again");
  }
}

} // namespace wdsbench::files
