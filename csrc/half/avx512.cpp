// VCVTPH2PS zmm, m256: 16 halves an instruction; one a cycle on Ice Lake and Zen 4 (uops.info).
// Tail: one masked load and store (AVX512BW and VL give 16-bit masks); masked-off lanes are not
// touched in memory.

#include "half/half.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

namespace wdsbench::half {

__attribute__((target("avx512f,avx512bw,avx512vl"))) void
half_to_float_avx512(const void *in, void *out, std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  constexpr std::size_t LANES = 16;
  std::size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const __m256i bits_u16x16 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(source + i));
    _mm512_storeu_ps(target + i, _mm512_cvtph_ps(bits_u16x16));
  }
  const std::size_t rest = count - i;
  if (rest != 0) {
    const auto mask = static_cast<__mmask16>((1U << rest) - 1U);
    const __m256i bits_u16x16 = _mm256_maskz_loadu_epi16(mask, source + i);
    _mm512_mask_storeu_ps(target + i, mask, _mm512_cvtph_ps(bits_u16x16));
  }
}

} // namespace wdsbench::half

#endif
