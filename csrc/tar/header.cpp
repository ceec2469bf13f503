#include "tar/header.hpp"

#include <algorithm>
#include <cstring>

namespace wdsbench::tar {

namespace {

struct Field {
  std::size_t at;
  std::size_t length;
};

constexpr Field NAME{0, 100};
constexpr Field SIZE{124, 12};
constexpr Field CHECKSUM{148, 8};
constexpr std::size_t TYPE_AT = 156;
constexpr Field MAGIC{257, 8}; // with the version: "ustar\0" "00" or "ustar  \0"
constexpr Field PREFIX{345, 155};

std::string text_of(const std::uint8_t *block, Field field) {
  const auto *start = reinterpret_cast<const char *>(block + field.at);
  return {start, strnlen(start, field.length)};
}

/// Octal digits between optional spaces and NULs, or, with the highest bit set, GNU's big-endian
/// binary number.
std::uint64_t number_of(const std::uint8_t *block, Field field, std::uint64_t offset_bytes,
                        const char *what) {
  const std::uint8_t *bytes = block + field.at;
  const auto fail = [&]() -> std::uint64_t {
    throw FormatError(FormatKind::header, offset_bytes + field.at,
                      std::string("the ") + what + " is not a number");
  };
  std::uint64_t value = 0;
  if ((bytes[0] & 0x80U) != 0) {
    if (bytes[0] != 0x80U) { // negative, or beyond 64 bits
      return fail();
    }
    for (std::size_t i = 1; i < field.length; ++i) {
      if (value > (UINT64_MAX >> 8)) {
        return fail();
      }
      value = (value << 8) | bytes[i];
    }
    return value;
  }
  std::size_t i = 0;
  while (i < field.length && bytes[i] == ' ') {
    ++i;
  }
  const std::size_t first_digit = i;
  for (; i < field.length && bytes[i] >= '0' && bytes[i] <= '7'; ++i) {
    value = value * 8 + static_cast<std::uint64_t>(bytes[i] - '0'); // 12 digits: 36 bits
  }
  const bool ended = std::all_of(bytes + i, bytes + field.length,
                                 [](std::uint8_t byte) { return byte == ' ' || byte == 0; });
  return i == first_digit || !ended ? fail() : value;
}

void check_sum(const std::uint8_t *block, std::uint64_t offset_bytes) {
  // The sum counts its own field as spaces; some old writers summed signed characters (as GNU tar
  // accepts).
  std::uint64_t sum = CHECKSUM.length * std::uint64_t{' '};
  std::int64_t signed_sum = static_cast<std::int64_t>(sum);
  for (std::size_t i = 0; i < BLOCK_BYTES; ++i) {
    if (i < CHECKSUM.at || i >= CHECKSUM.at + CHECKSUM.length) {
      sum += block[i];
      signed_sum += static_cast<std::int8_t>(block[i]);
    }
  }
  const std::uint64_t stored = number_of(block, CHECKSUM, offset_bytes, "checksum");
  if (stored != sum && static_cast<std::int64_t>(stored) != signed_sum) {
    throw FormatError(FormatKind::header, offset_bytes + CHECKSUM.at,
                      "header checksum " + std::to_string(stored) + ", its bytes give " +
                          std::to_string(sum));
  }
}

EntryType entry_type(std::uint8_t flag, std::uint64_t offset_bytes) {
  switch (flag) {
  case '0':
  case '\0':
  case '7': // contiguous file: an ordinary one to everybody
    return EntryType::regular;
  case '5':
    return EntryType::directory;
  case 'x':
    return EntryType::pax;
  case 'g':
    return EntryType::pax_global;
  case 'L':
    return EntryType::gnu_name;
  case 'K':
    return EntryType::gnu_link;
  default:
    break;
  }
  const std::string shown = flag >= ' ' && flag <= '~'
                                ? std::string("'") + static_cast<char>(flag) + "'"
                                : "number " + std::to_string(flag);
  throw FormatError(FormatKind::header, offset_bytes + TYPE_AT,
                    "entry type " + shown +
                        " is not a regular file; links, devices and sparse files hold no sample:"
                        " pack the files themselves");
}

} // namespace

bool is_zero_block(const std::uint8_t *block) {
  return std::all_of(block, block + BLOCK_BYTES, [](std::uint8_t byte) { return byte == 0; });
}

Header parse_header(const std::uint8_t *block, std::uint64_t offset_bytes) {
  const auto *magic = reinterpret_cast<const char *>(block + MAGIC.at);
  const bool ustar = std::memcmp(magic,
                                 "ustar\0"
                                 "00",
                                 MAGIC.length) == 0;
  const bool gnu = std::memcmp(magic, "ustar  \0", MAGIC.length) == 0;
  const bool older = std::all_of(magic, magic + MAGIC.length, [](char byte) { return byte == 0; });
  if (!ustar && !gnu && !older) {
    throw FormatError(FormatKind::magic, offset_bytes + MAGIC.at,
                      "not a tar header: the magic is missing");
  }
  check_sum(block, offset_bytes);
  Header header;
  header.name = text_of(block, NAME);
  if (ustar) { // GNU keeps other things where the prefix is
    const std::string prefix = text_of(block, PREFIX);
    if (!prefix.empty()) {
      header.name = prefix + "/" + header.name;
    }
  }
  header.size_bytes = number_of(block, SIZE, offset_bytes, "size");
  header.type = entry_type(block[TYPE_AT], offset_bytes);
  return header;
}

} // namespace wdsbench::tar
