#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// IEEE 754 binary16 ("half") to binary32 and back.
///
/// Contract of every widening kernel:
/// - exact: each half, subnormals and infinities included, becomes the float of the same value;
/// - NaN: sign and payload are kept and the quiet bit is set, as the hardware does (a signalling
/// NaN becomes quiet);
/// - `in` and `out` may have any alignment and any length, and must not overlap;
/// - never reads past `in + 2 * count`, never writes past `out + 4 * count`.
namespace wdsbench::half {

using WidenKernel = void (*)(const void *in, void *out, std::size_t count) noexcept;

struct KernelEntry {
  const char *name;
  bool (*supported)();
  WidenKernel widen;
  /// The same with stores that bypass the cache, for output that is not read soon: no line is
  /// fetched before it is overwritten. Equal to `widen` on architectures without a gain.
  WidenKernel stream;
};

void half_to_float_scalar(const void *in, void *out, std::size_t count) noexcept;
void half_to_float_f16c(const void *in, void *out, std::size_t count) noexcept;
void half_to_float_avx512(const void *in, void *out, std::size_t count) noexcept;
void half_stream_f16c(const void *in, void *out, std::size_t count) noexcept;
void half_stream_avx512(const void *in, void *out, std::size_t count) noexcept;
void half_to_float_neon(const void *in, void *out, std::size_t count) noexcept;

/// Returns the float of one half: the reference of the contract above.
float widen_one(std::uint16_t bits) noexcept;

/// Returns the half nearest to `value`, ties to even, overflow to infinity, NaN quiet (IEEE
/// 754-2019, 4.3.1).
std::uint16_t narrow_one(float value) noexcept;

/// Returns all kernels compiled for this architecture, best first; scalar is always the last.
std::span<const KernelEntry> kernels();

/// Returns the kernel in use: the first supported, or the one that WDSBENCH_HALF_KERNEL names.
/// Throws std::invalid_argument if the variable names an unknown or unsupported kernel.
const KernelEntry &chosen_kernel();

} // namespace wdsbench::half
