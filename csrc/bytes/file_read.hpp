#pragma once

#include "bytes/format_error.hpp"

#include <cstddef>
#include <cstdint>

namespace wdsbench {

/// Copies bytes [offset, offset + count) of an open file to `out`.
/// Throws FormatError: io (the system refuses), truncated (the file ends before; the offset is
/// where it does).
void read_exactly(int fd, std::uint64_t offset, std::size_t count, void *out);

} // namespace wdsbench
