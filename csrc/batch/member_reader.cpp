#include "batch/member_reader.hpp"

#include "bytes/file_read.hpp"

#include <array>

namespace wdsbench::batch {

namespace {

/// Every header that NumPy or our writer makes for up to four axes; longer ones are read in a
/// second go.
constexpr std::size_t USUAL_HEADER_BYTES = 128;

void read_at(const MemberRef &ref, std::uint64_t at, std::size_t count, void *out) {
  read_exactly(ref.fd, ref.offset_bytes + at, count, out);
}

npy::Header read_header(const MemberRef &ref) {
  std::array<std::uint8_t, npy::MAX_HEADER_BYTES> bytes;
  std::size_t have = ref.size_bytes < USUAL_HEADER_BYTES ? static_cast<std::size_t>(ref.size_bytes)
                                                         : USUAL_HEADER_BYTES;
  read_at(ref, 0, have, bytes.data());
  try {
    return npy::parse_header(ByteView(bytes.data(), have, ref.offset_bytes), ref.size_bytes);
  } catch (const FormatError &error) {
    if (error.kind != FormatKind::truncated || have == ref.size_bytes) {
      throw;
    }
  }
  have = ref.size_bytes < bytes.size() ? static_cast<std::size_t>(ref.size_bytes) : bytes.size();
  read_at(ref, 0, have, bytes.data());
  return npy::parse_header(ByteView(bytes.data(), have, ref.offset_bytes), ref.size_bytes);
}

} // namespace

MemberReader::MemberReader(const MemberRef &ref) : ref_(ref), header_(read_header(ref)) {}

void MemberReader::read(std::uint64_t at, std::size_t count, void *out) const {
  read_at(ref_, header_.payload_offset + at, count, out);
}

const std::uint8_t *MemberReader::view(std::uint64_t at, std::size_t count,
                                       std::vector<std::uint8_t> &scratch) const {
  if (scratch.size() < count) {
    scratch.resize(count);
  }
  read(at, count, scratch.data());
  return scratch.data();
}

} // namespace wdsbench::batch
