#include "tar/index.hpp"

#include "bytes/file_read.hpp"

#include <algorithm>
#include <optional>

namespace wdsbench::tar {

namespace {

/// Read at a time: the headers of many small members, or one header of a large one.
constexpr std::size_t WINDOW_BYTES = std::size_t{64} * 1024;

/// A name or PAX record longer than this is not one (Linux paths end at 4,096 bytes).
constexpr std::uint64_t EXTRA_LIMIT_BYTES = std::uint64_t{1} << 20;

/// Gives views of a file through one window that moves forward.
class Window {
public:
  Window(int fd, std::uint64_t file_size) : fd_(fd), file_size_(file_size) {}

  [[nodiscard]] std::uint64_t file_size() const { return file_size_; }

  /// Returns the block at `offset`; valid until the next call. Throws FormatError(truncated) where
  /// the file has none.
  const std::uint8_t *block(std::uint64_t offset) {
    if (offset > file_size_ || file_size_ - offset < BLOCK_BYTES) {
      throw FormatError(
          FormatKind::truncated, file_size_,
          "the archive ends without its two zero blocks; it was cut: restore or pack it again");
    }
    if (offset < start_ || offset + BLOCK_BYTES > start_ + bytes_.size()) {
      bytes_.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(WINDOW_BYTES, file_size_ - offset)));
      read_exactly(fd_, offset, bytes_.size(), bytes_.data());
      start_ = offset;
    }
    return bytes_.data() + (offset - start_);
  }

  /// Returns [offset, offset + count) as text.
  [[nodiscard]] std::string text(std::uint64_t offset, std::uint64_t count) const {
    std::string value(static_cast<std::size_t>(count), '\0');
    read_exactly(fd_, offset, value.size(), value.data());
    return value;
  }

private:
  int fd_;
  std::uint64_t file_size_;
  std::uint64_t start_ = 0;
  std::vector<std::uint8_t> bytes_;
};

/// Values of extra entries for the entry that follows them.
struct Override {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size_bytes;
};

std::uint64_t decimal(const std::string &digits, std::uint64_t offset) {
  std::uint64_t value = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9' || value > (UINT64_MAX - 9) / 10) {
      throw FormatError(FormatKind::header, offset,
                        "'" + digits + "' in a PAX record is not a number");
    }
    value = value * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  if (digits.empty()) {
    throw FormatError(FormatKind::header, offset, "a number is missing in a PAX record");
  }
  return value;
}

/// Reads PAX records "LENGTH KEY=VALUE\n" (POSIX.1-2001, pax, extended header); LENGTH counts the
/// whole record.
void read_pax(const std::string &records, std::uint64_t offset, Override &next) {
  for (std::size_t at = 0; at < records.size();) {
    const std::size_t space = records.find(' ', at);
    const std::uint64_t place = offset + at;
    if (space == std::string::npos) {
      throw FormatError(FormatKind::header, place, "a PAX record has no length");
    }
    const std::uint64_t length = decimal(records.substr(at, space - at), place);
    if (length > records.size() - at || length < space - at + 2 ||
        records[at + length - 1] != '\n') {
      throw FormatError(FormatKind::header, place,
                        "a PAX record of " + std::to_string(length) +
                            " bytes does not end with its line");
    }
    const std::string record = records.substr(space + 1, at + length - 1 - (space + 1));
    const std::size_t equals = record.find('=');
    if (equals == std::string::npos) {
      throw FormatError(FormatKind::header, place, "a PAX record has no '='");
    }
    const std::string key = record.substr(0, equals);
    const std::string value = record.substr(equals + 1);
    if (key == "path") {
      next.name = value;
    } else if (key == "size") {
      next.size_bytes = decimal(value, place);
    } else if (key.rfind("GNU.sparse", 0) == 0) {
      throw FormatError(FormatKind::header, place, "sparse files are not read; pack them whole");
    }
    at += length;
  }
}

void check_end(Window &window, std::uint64_t offset) {
  const std::uint64_t end = window.file_size() - window.file_size() % BLOCK_BYTES;
  if (end - offset < 2 * BLOCK_BYTES) {
    static_cast<void>(window.block(offset + BLOCK_BYTES)); // throws: one zero block is no end
  }
  for (std::uint64_t at = offset; at < end; at += BLOCK_BYTES) {
    if (!is_zero_block(window.block(at))) {
      throw FormatError(
          at == offset + BLOCK_BYTES ? FormatKind::truncated : FormatKind::value, at,
          "bytes after the end of the archive; two archives were joined, or one was overwritten");
    }
  }
  const std::string rest = window.text(end, window.file_size() - end);
  if (std::any_of(rest.begin(), rest.end(), [](char byte) { return byte != 0; })) {
    throw FormatError(FormatKind::value, end, "bytes after the end of the archive");
  }
}

} // namespace

std::vector<Member> list_members(int fd, std::uint64_t file_size) {
  Window window(fd, file_size);
  std::vector<Member> members;
  Override next;
  bool has_override = false;
  for (std::uint64_t offset = 0;;) {
    const std::uint8_t *block = window.block(offset);
    if (is_zero_block(block)) {
      if (has_override) {
        throw FormatError(FormatKind::header, offset,
                          "a long name or PAX header belongs to no entry");
      }
      check_end(window, offset);
      return members;
    }
    Header header = parse_header(block, offset);
    const bool extra = header.type != EntryType::regular && header.type != EntryType::directory;
    const std::uint64_t data = offset + BLOCK_BYTES;
    const std::uint64_t size =
        extra ? header.size_bytes : next.size_bytes.value_or(header.size_bytes);
    const std::uint64_t left = file_size - data;
    // Bounds `size`, so that the rounding below cannot wrap.
    if (size > left) {
      throw FormatError(FormatKind::truncated, file_size,
                        "entry '" + header.name + "' at " + std::to_string(offset) + " has " +
                            std::to_string(size) + " bytes, the file has " + std::to_string(left) +
                            " left");
    }
    if (extra) {
      if (size > EXTRA_LIMIT_BYTES) {
        throw FormatError(FormatKind::header, offset,
                          "a long name or PAX header of " + std::to_string(size) + " bytes");
      }
      const std::string text = window.text(data, size);
      if (header.type == EntryType::gnu_name) {
        next.name = text.substr(0, text.find('\0'));
      } else if (header.type == EntryType::pax) {
        read_pax(text, data, next);
      } else if (header.type == EntryType::pax_global) {
        Override global; // checked; a name or size for every entry would make no sense
        read_pax(text, data, global);
        if (global.name || global.size_bytes) {
          throw FormatError(FormatKind::header, data,
                            "a global PAX header sets every entry's name or size");
        }
      }
      has_override = has_override || header.type != EntryType::pax_global;
    } else {
      if (header.type == EntryType::regular) {
        members.push_back({next.name.value_or(std::move(header.name)), data, size});
      }
      next = {};
      has_override = false;
    }
    offset = data + (size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
  }
}

} // namespace wdsbench::tar
