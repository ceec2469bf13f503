#pragma once

#include "bytes/byte_view.hpp"

#include <array>
#include <optional>
#include <string>

/// Headers of .npy members (NumPy NEP 1, format versions 1.0 to 3.0), parsed by a fixed grammar and
/// never evaluated.
namespace wdsbench::npy {

enum class ElementType : std::uint8_t { f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, boolean };

/// Returns the type that a descr such as "<f2" names, if this reader supports it.
std::optional<ElementType> element_type(const std::string &descr);

/// Returns the bytes of one element.
std::size_t element_size(ElementType type);

/// Returns the descr NumPy writes for it.
const char *element_name(ElementType type);

struct Header {
  static constexpr std::size_t MAX_AXES = 8;

  ElementType type = ElementType::f32;
  std::size_t axes = 0;
  std::array<std::uint64_t, MAX_AXES> shape = {};
  std::size_t payload_offset = 0; ///< From the start of the member.

  /// Returns the elements of the array; the parser has checked that the product fits.
  [[nodiscard]] std::uint64_t count() const;

  /// Returns the shape as Python writes it, for errors: "(32, 17, 4096)".
  [[nodiscard]] std::string shape_text() const;
};

/// Bytes that hold any header this reader accepts; NumPy refuses longer ones too (max_header_size).
constexpr std::size_t MAX_HEADER_BYTES = 10000;

/// Returns the header at the start of `bytes`, which may be the first part of a member of
/// `member_size` bytes.
///
/// Throws FormatError: magic, header (grammar), dtype (big-endian, object, structured, complex),
/// shape (Fortran order, more than 8 axes), size (payload is not exactly the rest of the
/// member), truncated (`bytes` ends inside the header; the caller may retry with more).
Header parse_header(const ByteView &bytes, std::uint64_t member_size);

} // namespace wdsbench::npy
