#pragma once

#include <cstddef>
#include <cstdint>

/// Stored edge indices (unsigned, little-endian, 1, 2 or 4 bytes, unaligned) and half weights, many
/// at once. The loops have no branch, so that the compiler makes vectors of them.
namespace wdsbench::graph {

/// Returns index `at`.
std::uint64_t load_index(const std::uint8_t *in, std::size_t width, std::uint64_t at);

/// Returns whether the edges are ordered by target, then source, each once, with every source
/// below its target and every target below `tokens`.
bool pairs_sound(const std::uint8_t *sources, const std::uint8_t *targets, std::size_t width,
                 std::size_t count, std::uint64_t tokens);

/// Returns whether every half is a number from 0 to the half of `largest_bits`.
bool weights_sound(const std::uint8_t *halves, std::size_t count, std::uint16_t largest_bits);

/// Writes `count` indices as int64, `shift` added to each. Through the cache: stores that bypass it
/// take almost twice as long here (batches of 12 MB, 355 against 555 us).
void shift_indices(const std::uint8_t *in, std::size_t width, std::size_t count, std::int64_t shift,
                   std::int64_t *out);

} // namespace wdsbench::graph
