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

template <typename Index>
bool all_sound(const std::uint8_t *sources, const std::uint8_t *targets, std::size_t count,
               std::uint64_t tokens) {
  Index largest = 0;
  Index disordered = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const auto target = load<Index>(targets, k);
    largest = std::max(largest, target);
    disordered |= static_cast<Index>(load<Index>(sources, k) >= target);
  }
  return disordered == 0 && (count == 0 || largest < tokens);
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

bool halves_finite(const std::uint8_t *halves, std::size_t count) {
  constexpr std::uint16_t EXPONENT = 0x7C00; // all of its bits set: infinite or NaN
  std::uint16_t largest = 0;
  for (std::size_t k = 0; k < count; ++k) {
    largest =
        std::max(largest, static_cast<std::uint16_t>(load<std::uint16_t>(halves, k) & EXPONENT));
  }
  return largest != EXPONENT;
}

void shift_indices(const std::uint8_t *in, std::size_t width, std::size_t count, std::int64_t shift,
                   std::int64_t *out) {
  with_width(width, [&](auto type) { shift_all<decltype(type)>(in, count, shift, out); });
}

} // namespace wdsbench::graph
