#pragma once

#include "npy/header.hpp"

namespace wdsbench::batch {

/// Converts `count` elements of `type` at `in` to float32 at `out`; neither needs an alignment.
/// f16 by the chosen half kernel, bf16 and f32 exactly, the others rounded to nearest.
void widen(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count);

} // namespace wdsbench::batch
