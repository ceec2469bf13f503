#include "npy/header.hpp"

namespace wdsbench::npy {

namespace {

constexpr std::size_t MAGIC_BYTES = 6;

struct Element {
  ElementType type;
  const char *descr;
  std::size_t bytes;
};

constexpr Element ELEMENTS[] = {
    {ElementType::f16, "<f2", 2}, {ElementType::f32, "<f4", 4},     {ElementType::f64, "<f8", 8},
    {ElementType::i8, "|i1", 1},  {ElementType::i16, "<i2", 2},     {ElementType::i32, "<i4", 4},
    {ElementType::i64, "<i8", 8}, {ElementType::u8, "|u1", 1},      {ElementType::u16, "<u2", 2},
    {ElementType::u32, "<u4", 4}, {ElementType::boolean, "|b1", 1},
};

/// Walks the header's text once, left to right.
class Parser {
public:
  Parser(const ByteView &bytes, std::size_t at, std::size_t end)
      : bytes_(bytes), at_(at), end_(end) {}

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran;
    bool shape_seen = false;
    expect('{');
    skip_spaces();
    while (peek() != '}') {
      const std::size_t key_at = at_;
      const std::string key = quoted();
      skip_spaces();
      expect(':');
      skip_spaces();
      if (key == "descr" && !descr) {
        descr_at_ = at_;
        if (peek() == '[') {
          fail(FormatKind::dtype, at_,
               "structured arrays are not read; store each field as its own member");
        }
        descr = quoted();
      } else if (key == "fortran_order" && !fortran) {
        fortran_at_ = at_;
        fortran = boolean();
      } else if (key == "shape" && !shape_seen) {
        shape();
        shape_seen = true;
      } else {
        fail(FormatKind::header, key_at, "unexpected or repeated key '" + key + "'");
      }
      skip_spaces();
      if (peek() == ',') {
        ++at_;
        skip_spaces();
      } else if (peek() != '}') {
        fail(FormatKind::header, at_, "expected ',' or '}'");
      }
    }
    ++at_;
    while (at_ < end_) { // padding: spaces, then one newline
      const std::uint8_t byte = bytes_.byte(at_);
      if (byte != (at_ + 1 == end_ ? '\n' : ' ')) {
        fail(FormatKind::header, at_, "expected padding of spaces and one newline");
      }
      ++at_;
    }
    if (!descr || !fortran || !shape_seen) {
      fail(FormatKind::header, end_, "'descr', 'fortran_order' and 'shape' are all needed");
    }
    if (*fortran && header_.axes > 1) {
      fail(FormatKind::shape, fortran_at_,
           "Fortran order is not read; store numpy.ascontiguousarray(x)");
    }
    header_.type = known_type(*descr);
    header_.payload_offset = end_;
    return header_;
  }

private:
  [[noreturn]] void fail(FormatKind kind, std::size_t at, const std::string &detail) const {
    throw FormatError(kind, bytes_.file_offset(at), detail);
  }

  [[nodiscard]] char peek() const {
    if (at_ >= end_) {
      fail(FormatKind::header, end_, "the header ends in the middle of its dictionary");
    }
    return static_cast<char>(bytes_.byte(at_));
  }

  void expect(char wanted) {
    if (peek() != wanted) {
      fail(FormatKind::header, at_, std::string("expected '") + wanted + "'");
    }
    ++at_;
  }

  void skip_spaces() {
    while (peek() == ' ') {
      ++at_;
    }
  }

  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      fail(FormatKind::header, at_, "expected a quoted string");
    }
    ++at_;
    std::string text;
    for (char next = peek(); next != quote; next = peek()) {
      if (next < ' ' || next > '~' || next == '\\') {
        fail(FormatKind::header, at_, "unexpected character in a string");
      }
      text += next;
      ++at_;
    }
    ++at_;
    return text;
  }

  bool boolean() {
    for (const bool value : {true, false}) {
      const std::string word = value ? "True" : "False";
      if (at_ + word.size() <= end_ && bytes_.starts_with(at_, word.data(), word.size())) {
        at_ += word.size();
        return value;
      }
    }
    fail(FormatKind::header, at_, "expected True or False");
  }

  void shape() {
    expect('(');
    skip_spaces();
    while (peek() != ')') {
      if (header_.axes == Header::MAX_AXES) {
        fail(FormatKind::shape, at_, "more than 8 axes");
      }
      header_.shape[header_.axes++] = integer();
      skip_spaces();
      if (peek() == ',') {
        ++at_;
        skip_spaces();
      } else if (peek() != ')') {
        fail(FormatKind::header, at_, "expected ',' or ')'");
      } else if (header_.axes == 1) {
        fail(FormatKind::header, at_, "a shape of one axis is written (n,)");
      }
    }
    ++at_;
  }

  std::uint64_t integer() {
    if (peek() < '0' || peek() > '9') {
      fail(FormatKind::header, at_, "expected a non-negative integer");
    }
    std::uint64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      const auto digit = static_cast<std::uint64_t>(peek() - '0');
      if (value > (UINT64_MAX - digit) / 10) {
        fail(FormatKind::shape, at_, "an axis does not fit 64 bits");
      }
      value = value * 10 + digit;
    }
    return value;
  }

  [[nodiscard]] ElementType known_type(const std::string &descr) const {
    if (const auto type = element_type(descr)) {
      return *type;
    }
    std::string names;
    for (const Element &element : ELEMENTS) {
      names += std::string(names.empty() ? "'" : ", '") + element.descr + "'";
    }
    fail(FormatKind::dtype, descr_at_, "descr '" + descr + "' is not one of " + names);
  }

  const ByteView &bytes_;
  std::size_t at_;
  std::size_t end_;
  std::size_t descr_at_ = 0;
  std::size_t fortran_at_ = 0;
  Header header_;
};

} // namespace

std::optional<ElementType> element_type(const std::string &descr) {
  for (const Element &element : ELEMENTS) {
    // NumPy writes one-byte types with '|'; '<' and '=' mean the same for them.
    if (descr == element.descr ||
        (element.bytes == 1 && descr.size() == 3 && (descr[0] == '<' || descr[0] == '=') &&
         descr.compare(1, 2, element.descr + 1) == 0)) {
      return element.type;
    }
  }
  return std::nullopt;
}

std::size_t element_size(ElementType type) {
  for (const Element &element : ELEMENTS) {
    if (element.type == type) {
      return element.bytes;
    }
  }
  return 0;
}

const char *element_name(ElementType type) {
  for (const Element &element : ELEMENTS) {
    if (element.type == type) {
      return element.descr;
    }
  }
  return "?";
}

std::uint64_t Header::count() const {
  std::uint64_t elements = 1;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    elements *= shape[axis];
  }
  return elements;
}

std::string Header::shape_text() const {
  std::string text = "(";
  for (std::size_t axis = 0; axis < axes; ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + (axes == 1 ? ",)" : ")");
}

Header parse_header(const ByteView &bytes, std::uint64_t member_size) {
  if (!bytes.starts_with(0, "\x93NUMPY", MAGIC_BYTES)) {
    throw FormatError(FormatKind::magic, bytes.file_offset(0),
                      "not an npy member: the magic string is missing");
  }
  const std::uint8_t major = bytes.byte(MAGIC_BYTES);
  const std::uint8_t minor = bytes.byte(MAGIC_BYTES + 1);
  if (major < 1 || major > 3 || minor != 0) {
    throw FormatError(FormatKind::header, bytes.file_offset(MAGIC_BYTES),
                      "npy version " + std::to_string(major) + "." + std::to_string(minor) +
                          " is not one of 1.0, 2.0, 3.0");
  }
  const std::size_t length_at = MAGIC_BYTES + 2;
  const std::size_t start = length_at + (major == 1 ? 2 : 4);
  const std::size_t length = major == 1 ? bytes.u16(length_at) : bytes.u32(length_at);
  // Bounds the search and, with the check below, every index the parser forms.
  if (length > MAX_HEADER_BYTES - start) {
    throw FormatError(FormatKind::header, bytes.file_offset(length_at),
                      "header of " + std::to_string(length) + " bytes, at most " +
                          std::to_string(MAX_HEADER_BYTES - start) + " are read");
  }
  const std::size_t end = start + length;
  if (end > bytes.size()) {
    throw FormatError(FormatKind::truncated, bytes.file_offset(bytes.size()),
                      "the header needs " + std::to_string(end) + " bytes");
  }
  const Header header = Parser(bytes, start, end).parse();
  std::uint64_t payload = element_size(header.type);
  for (std::size_t axis = 0; axis < header.axes; ++axis) {
    payload = checked_product(payload, header.shape[axis], bytes.file_offset(start));
  }
  if (payload != member_size - end || end > member_size) {
    throw FormatError(FormatKind::size, bytes.file_offset(end),
                      "shape " + header.shape_text() + " of '" + element_name(header.type) +
                          "' needs " + std::to_string(payload) + " bytes, the member has " +
                          std::to_string(end > member_size ? 0 : member_size - end));
  }
  return header;
}

} // namespace wdsbench::npy
