// FCVTL v.4s, v.4h: 4 halves an instruction, two a cycle on Neoverse V1 (Arm's optimisation guide).
// Tail: fewer than 4 halves pass through a zeroed 4-lane buffer, so nothing past the ends is
// touched.

#include "half/half.hpp"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <cstring>

namespace wdsbench::half {

void half_to_float_neon(const void *in, void *out, std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint8_t *>(in);
  auto *target = static_cast<std::uint8_t *>(out);
  constexpr std::size_t LANES = 4;
  std::size_t i = 0;
  for (; i < count; i += LANES) {
    const std::size_t lanes = count - i < LANES ? count - i : LANES;
    std::uint16_t bits_u16x4[LANES] = {};
    std::memcpy(bits_u16x4, source + 2 * i, 2 * lanes);
    const float32x4_t out_f32x4 = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits_u16x4)));
    float values_f32x4[LANES];
    vst1q_f32(values_f32x4, out_f32x4);
    std::memcpy(target + 4 * i, values_f32x4, 4 * lanes);
  }
}

} // namespace wdsbench::half

#endif
