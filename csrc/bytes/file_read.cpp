#include "bytes/file_read.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <unistd.h>

namespace wdsbench {

void read_exactly(int fd, std::uint64_t offset, std::size_t count, void *out) {
  auto *target = static_cast<std::uint8_t *>(out);
  while (count > 0) {
    const ssize_t got = ::pread(fd, target, count, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw FormatError(FormatKind::io, offset,
                        std::string("cannot read: ") + std::strerror(errno));
    }
    if (got == 0) {
      throw FormatError(FormatKind::truncated, offset,
                        "the file ends here, " + std::to_string(count) +
                            " bytes of the member are missing");
    }
    target += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

} // namespace wdsbench
