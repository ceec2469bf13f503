#pragma once

#include "tar/header.hpp"

#include <vector>

namespace wdsbench::tar {

/// A regular file of an archive.
struct Member {
  std::string name;
  std::uint64_t offset_bytes = 0; ///< Of its data in the archive.
  std::uint64_t size_bytes = 0;
};

/// Returns the regular files of the archive open at `fd`, `file_size` bytes long, in order,
/// without directories.
///
/// Checks that nothing is missing: every header's checksum holds, every size ends inside the file,
/// and the archive ends with at least two zero blocks and then only zeros (tarfile and GNU tar pad
/// to 10,240 bytes). Throws FormatError with file offsets: those of parse_header; truncated (the
/// file ends inside an entry, or without its end), header (PAX records that break their grammar, a
/// long name without an entry), value (bytes after the end), io.
std::vector<Member> list_members(int fd, std::uint64_t file_size);

} // namespace wdsbench::tar
