#pragma once

#include "npy/header.hpp"

namespace wdsbench::batch {

/// How results are stored: through the cache, or bypassing it. The latter is faster for a batch
/// larger than the caches, since no line is fetched only to be overwritten.
enum class Stores : std::uint8_t { cached, streaming };

/// Batches of fewer bytes may still be in the cache when the trainer reads them.
constexpr std::uint64_t STREAMING_LEAST_BYTES = std::uint64_t{4} << 20;

/// Returns the better way for a tensor of so many bytes.
constexpr Stores stores_of(std::uint64_t tensor_bytes) {
  return tensor_bytes < STREAMING_LEAST_BYTES ? Stores::cached : Stores::streaming;
}

/// Converts `count` elements of `type` at `in` to float32 at `out`; neither needs an alignment.
/// f16 by the chosen half kernel, f32 exactly, the others rounded to nearest.
void widen(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count,
           Stores stores);

/// The values that become 0 and 1.
struct Range {
  float low = 0.0F;
  float high = 1.0F;
};

/// As `widen`, then (x - low) / (high - low) in float32; zeros if the range is empty or not finite.
void normalise(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count,
               Range range, Stores stores);

/// Sets `count` floats to zero.
void fill_zeros(float *out, std::size_t count, Stores stores);

} // namespace wdsbench::batch
