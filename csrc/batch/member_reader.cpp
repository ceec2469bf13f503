#include "batch/member_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace wdsbench::batch {

namespace {

/// Every header that NumPy or our writer makes for up to four axes; longer ones are read in a
/// second go.
constexpr std::size_t USUAL_HEADER_BYTES = 128;

/// The last header that a thread parsed: members of one data set mostly have the same, byte for
/// byte, and comparing 128 bytes costs a tenth of parsing them.
struct LastHeader {
  std::uint64_t member_size = 0;
  std::array<std::uint8_t, USUAL_HEADER_BYTES> bytes = {};
  npy::Header header;
};

npy::Header read_header(const MemberRef &ref) {
  thread_local LastHeader last;
  std::array<std::uint8_t, npy::MAX_HEADER_BYTES> bytes;
  auto have = static_cast<std::size_t>(std::min<std::uint64_t>(ref.size_bytes, bytes.size()));
  const std::size_t usual = std::min(have, USUAL_HEADER_BYTES);
  ref.file->read(ref.offset_bytes, usual, bytes.data());
  const bool same = usual == USUAL_HEADER_BYTES && last.member_size == ref.size_bytes &&
                    std::memcmp(bytes.data(), last.bytes.data(), usual) == 0;
  if (same) {
    return last.header;
  }
  try {
    const ByteView view(bytes.data(), usual, ref.offset_bytes);
    const npy::Header header = npy::parse_header(view, ref.size_bytes);
    if (usual == USUAL_HEADER_BYTES) {
      last.member_size = ref.size_bytes;
      std::copy_n(bytes.begin(), usual, last.bytes.begin());
      last.header = header;
    }
    return header;
  } catch (const FormatError &error) {
    if (error.kind != FormatKind::truncated || usual == have) {
      throw;
    }
  }
  ref.file->read(ref.offset_bytes, have, bytes.data());
  return npy::parse_header(ByteView(bytes.data(), have, ref.offset_bytes), ref.size_bytes);
}

} // namespace

MemberReader::MemberReader(const MemberRef &ref) : ref_(ref), header_(read_header(ref)) {}

} // namespace wdsbench::batch
