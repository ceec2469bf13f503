// Integer arithmetic only; compiled without auto-vectorisation (CMakeLists.txt), to stay an honest
// baseline. About ten instructions an element; no tail.

#include "half/half.hpp"

#include <bit>
#include <cstring>

namespace wdsbench::half {

namespace {

constexpr std::uint32_t HALF_EXPONENT_BIAS = 15;
constexpr std::uint32_t FLOAT_EXPONENT_BIAS = 127;
constexpr std::uint32_t BIAS_SHIFT = FLOAT_EXPONENT_BIAS - HALF_EXPONENT_BIAS;
constexpr std::uint32_t HALF_MANTISSA_BITS = 10;
constexpr std::uint32_t FLOAT_MANTISSA_BITS = 23;
constexpr std::uint32_t MANTISSA_SHIFT = FLOAT_MANTISSA_BITS - HALF_MANTISSA_BITS;
constexpr std::uint32_t FLOAT_QUIET_BIT = 1U << (FLOAT_MANTISSA_BITS - 1);

} // namespace

float widen_one(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  std::uint32_t exponent = (bits >> HALF_MANTISSA_BITS) & 0x1FU;
  std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) { // infinity or NaN
    const std::uint32_t quiet = mantissa != 0 ? FLOAT_QUIET_BIT : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (mantissa << MANTISSA_SHIFT));
  }
  if (exponent == 0) {
    if (mantissa == 0) {
      return std::bit_cast<float>(sign);
    }
    // Subnormal: value = mantissa * 2^-24. Shift the leading one into bit 10; every float of that
    // size is normal.
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(mantissa)) - 21U;
    mantissa = (mantissa << shift) & 0x3FFU;
    exponent = 1U - shift; // may wrap; the sum below brings it back
  }
  return std::bit_cast<float>(sign | ((exponent + BIAS_SHIFT) << FLOAT_MANTISSA_BITS) |
                              (mantissa << MANTISSA_SHIFT));
}

std::uint16_t narrow_one(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) { // NaN: keep what fits of the payload, set the quiet bit
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> MANTISSA_SHIFT) & 0x3FFU));
  }
  // 65520 is the middle between the largest half (65504) and the next power of two: it and all
  // above become infinity.
  constexpr std::uint32_t FIRST_INFINITE = 0x477FF000U;
  if (magnitude >= FIRST_INFINITE) {
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  constexpr std::uint32_t SMALLEST_NORMAL = (BIAS_SHIFT + 1) << FLOAT_MANTISSA_BITS; // 2^-14
  std::uint32_t kept;
  std::uint32_t rest;
  std::uint32_t middle;
  if (magnitude >= SMALLEST_NORMAL) {
    const std::uint32_t rebased = magnitude - (BIAS_SHIFT << FLOAT_MANTISSA_BITS);
    kept = rebased >> MANTISSA_SHIFT;
    rest = rebased & ((1U << MANTISSA_SHIFT) - 1U);
    middle = 1U << (MANTISSA_SHIFT - 1);
  } else {
    const std::uint32_t exponent = magnitude >> FLOAT_MANTISSA_BITS;
    // Below 2^-25 (exponent 102) all rounds to zero; 2^-25 itself is a tie and goes to even, which
    // is zero.
    if (exponent < 102U) {
      return sign;
    }
    const std::uint32_t full = (magnitude & 0x7FFFFFU) | 0x800000U;
    const std::uint32_t shift = 126U - exponent; // 14..24: what a multiple of 2^-24 loses
    kept = full >> shift;
    rest = full & ((1U << shift) - 1U);
    middle = 1U << (shift - 1);
  }
  if (rest > middle || (rest == middle && (kept & 1U) != 0)) {
    ++kept; // a carry runs into the exponent, which is the right result
  }
  return static_cast<std::uint16_t>(sign | kept);
}

void half_to_float_scalar(const void *in, void *out, std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint8_t *>(in);
  auto *target = static_cast<std::uint8_t *>(out);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, source + 2 * i, sizeof bits);
    const float value = widen_one(bits);
    std::memcpy(target + 4 * i, &value, sizeof value);
  }
}

} // namespace wdsbench::half
