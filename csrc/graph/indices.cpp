#include "graph/indices.hpp"

#include <algorithm>
#include <cstring>

namespace wdsbench::graph {

namespace {

/// Calls `work` with a value of the unsigned type that is `width` bytes wide.
template <typename Work> auto with_width(std::size_t width, const Work &work) {
  if (width == sizeof(std::uint8_t)) {
    return work(std::uint8_t{});
  }
  if (width == sizeof(std::uint16_t)) {
    return work(std::uint16_t{});
  }
  return work(std::uint32_t{});
}

template <typename Value> Value load(const std::uint8_t *in, std::size_t at) {
  Value value;
  std::memcpy(&value, in + at * sizeof value, sizeof value);
  return value;
}

// The targets ascend, so the last one is the largest. Comparisons of narrow integers give masks of
// the same width, which keeps all lanes of a vector in use.
template <typename Index>
bool all_sound(const std::uint8_t *sources, const std::uint8_t *targets, std::size_t count,
               std::uint64_t tokens) {
  if (count == 0) {
    return true;
  }
  Index wrong = static_cast<Index>(load<Index>(sources, 0) >= load<Index>(targets, 0));
  for (std::size_t k = 1; k < count; ++k) {
    const auto source = load<Index>(sources, k);
    const auto target = load<Index>(targets, k);
    const auto before = load<Index>(targets, k - 1);
    const auto falls = static_cast<Index>(target < before);
    const auto equal = static_cast<Index>(target == before);
    const auto repeats = static_cast<Index>(source <= load<Index>(sources, k - 1));
    const auto backwards = static_cast<Index>(source >= target);
    wrong = static_cast<Index>(wrong | backwards | falls | (equal & repeats));
  }
  return wrong == 0 && load<Index>(targets, count - 1) < tokens;
}

template <typename Index>
void shift_all(const std::uint8_t *in, std::size_t count, std::int64_t shift, std::int64_t *out) {
  for (std::size_t k = 0; k < count; ++k) {
    out[k] = std::int64_t{load<Index>(in, k)} + shift;
  }
}

} // namespace

std::uint64_t load_index(const std::uint8_t *in, std::size_t width, std::uint64_t at) {
  return with_width(width, [&](auto type) { return std::uint64_t{load<decltype(type)>(in, at)}; });
}

bool pairs_sound(const std::uint8_t *sources, const std::uint8_t *targets, std::size_t width,
                 std::size_t count, std::uint64_t tokens) {
  return with_width(
      width, [&](auto type) { return all_sound<decltype(type)>(sources, targets, count, tokens); });
}

bool weights_sound(const std::uint8_t *halves, std::size_t count, std::uint16_t largest_bits) {
  // Bits of positive halves ascend with their value; infinity and NaN come last, and the sign bit
  // puts negative ones above them. -0 alone is negative and allowed. Masks, because the compiler
  // does not vectorise a maximum of values that are first replaced.
  constexpr std::uint16_t NEGATIVE_ZERO = 0x8000;
  std::uint16_t wrong = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const auto bits = load<std::uint16_t>(halves, k);
    const auto above = static_cast<std::uint16_t>(bits > largest_bits);
    const auto counts = static_cast<std::uint16_t>(bits != NEGATIVE_ZERO);
    wrong = static_cast<std::uint16_t>(wrong | (above & counts));
  }
  return wrong == 0;
}

void shift_indices(const std::uint8_t *in, std::size_t width, std::size_t count, std::int64_t shift,
                   std::int64_t *out) {
  with_width(width, [&](auto type) { shift_all<decltype(type)>(in, count, shift, out); });
}

} // namespace wdsbench::graph
