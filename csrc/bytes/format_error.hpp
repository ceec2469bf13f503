#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace wdsbench {

/// The fault in bytes from a file. The names are part of the Python interface (`error.kind`).
enum class FormatKind : std::uint8_t {
  truncated, ///< The file ends before the announced bytes.
  magic,     ///< The bytes are of another format.
  header,    ///< A header breaks its grammar.
  dtype,     ///< An element type that cannot be decoded here.
  shape,     ///< Axes that do not fit the batch.
  size,      ///< Announced and actual sizes disagree.
  value,     ///< An element outside its legal range (index, pointer, non-finite weight).
  io,        ///< The operating system refused to read.
};

/// Returns the kind's name as Python sees it.
constexpr const char *kind_name(FormatKind kind) {
  switch (kind) {
  case FormatKind::truncated:
    return "truncated";
  case FormatKind::magic:
    return "magic";
  case FormatKind::header:
    return "header";
  case FormatKind::dtype:
    return "dtype";
  case FormatKind::shape:
    return "shape";
  case FormatKind::size:
    return "size";
  case FormatKind::value:
    return "value";
  case FormatKind::io:
    return "io";
  }
  return "unknown";
}

/// Bytes that break their format: the fault, its place, and the sample of the batch.
class FormatError : public std::runtime_error {
public:
  /// `sample` of an error that was not found while decoding a batch.
  static constexpr std::size_t NO_SAMPLE = static_cast<std::size_t>(-1);

  FormatError(FormatKind kind, std::uint64_t offset_bytes, const std::string &detail)
      : std::runtime_error(detail), kind(kind), offset_bytes(offset_bytes) {}

  FormatKind kind;
  std::uint64_t offset_bytes;     ///< From the start of the file or buffer that was read.
  std::size_t sample = NO_SAMPLE; ///< Place in the batch; set by the batch decoders.
  const char *member = "";        ///< Member of the sample ("hidden", "edges_ptr", ...).
};

} // namespace wdsbench
