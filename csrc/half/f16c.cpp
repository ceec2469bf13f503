// VCVTPH2PS ymm, m128: 8 halves an instruction; 2 uops, one a cycle on Haswell to Zen 4
// (uops.info). Tail: fewer than 8 halves pass through a zeroed 8-lane buffer, so nothing past the
// ends is touched.

#include "half/half.hpp"

#if defined(__x86_64__)

#include <cstring>
#include <immintrin.h>

namespace wdsbench::half {

__attribute__((target("avx2,f16c"))) void half_to_float_f16c(const void *in, void *out,
                                                             std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  constexpr std::size_t LANES = 8;
  std::size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const __m128i bits_u16x8 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + i));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(bits_u16x8));
  }
  const std::size_t rest = count - i;
  if (rest != 0) {
    std::uint16_t tail_in[LANES] = {};
    float tail_out[LANES];
    std::memcpy(tail_in, source + i, rest * sizeof(std::uint16_t));
    const __m128i bits_u16x8 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(tail_in));
    _mm256_storeu_ps(tail_out, _mm256_cvtph_ps(bits_u16x8));
    std::memcpy(target + i, tail_out, rest * sizeof(float));
  }
}

} // namespace wdsbench::half

#endif
