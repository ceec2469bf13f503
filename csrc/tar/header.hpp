#pragma once

#include "bytes/byte_view.hpp"

#include <string>

/// One 512-byte tar header (POSIX.1-1988 ustar, with the GNU and POSIX.1-2001 extensions for
/// long names and sizes).
///
///     0 name 100 · 100 mode 8 · 124 size 12 · 136 mtime 12 · 148 checksum 8 · 156 type 1 · 157
///     link 100 257 magic 6 · 263 version 2 · 345 prefix 155
namespace wdsbench::tar {

constexpr std::size_t BLOCK_BYTES = 512;

enum class EntryType : std::uint8_t {
  regular,
  directory,
  pax,        ///< Records for the next entry.
  pax_global, ///< Records for all entries that follow.
  gnu_name,   ///< The next entry's name.
  gnu_link,   ///< The next entry's link target.
};

struct Header {
  std::string name; ///< Prefix joined; not yet overridden by a long name.
  std::uint64_t size_bytes = 0;
  EntryType type = EntryType::regular;
};

/// Returns whether a block is all zeros, as the end of an archive is.
bool is_zero_block(const std::uint8_t *block);

/// Returns the header in `block`, which is at `offset_bytes` of its file.
///
/// Throws FormatError: header (checksum, an invalid number, an entry type that holds no
/// bytes of its own: links, devices, sparse files), magic (neither ustar nor GNU nor the empty
/// magic of older tars).
Header parse_header(const std::uint8_t *block, std::uint64_t offset_bytes);

} // namespace wdsbench::tar
