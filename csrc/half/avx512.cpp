// VCVTPH2PS zmm, m256: 16 halves an instruction; one a cycle on Ice Lake and Zen 4 (uops.info).
// Tail: one masked load and store (AVX512BW and VL give 16-bit masks); masked-off lanes are not
// touched in memory. Streaming: a masked head up to the cache line, then VMOVNTPS, one whole line
// an instruction.

#include "half/half.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

namespace wdsbench::half {

namespace {

constexpr std::size_t LANES = 16;
constexpr std::size_t LINE_BYTES = 64;

/// Converts fewer than LANES halves.
__attribute__((target("avx512f,avx512bw,avx512vl"))) void
convert_some(const std::uint16_t *source, float *target, std::size_t count) noexcept {
  const auto mask = static_cast<__mmask16>((1U << count) - 1U);
  const __m256i bits_u16x16 = _mm256_maskz_loadu_epi16(mask, source);
  _mm512_mask_storeu_ps(target, mask, _mm512_cvtph_ps(bits_u16x16));
}

} // namespace

__attribute__((target("avx512f,avx512bw,avx512vl"))) void
half_to_float_avx512(const void *in, void *out, std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  std::size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const __m256i bits_u16x16 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(source + i));
    _mm512_storeu_ps(target + i, _mm512_cvtph_ps(bits_u16x16));
  }
  if (i != count) {
    convert_some(source + i, target + i, count - i);
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) void
half_stream_avx512(const void *in, void *out, std::size_t count) noexcept {
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(out) % LINE_BYTES;
  const std::size_t head = past_line == 0 ? 0 : (LINE_BYTES - past_line) / sizeof(float);
  if (past_line % sizeof(float) != 0 || head > count) {
    half_to_float_avx512(in, out, count);
    return;
  }
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  convert_some(source, target, head);
  std::size_t i = head;
  for (; i + LANES <= count; i += LANES) {
    const __m256i bits_u16x16 = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(source + i));
    _mm512_stream_ps(target + i, _mm512_cvtph_ps(bits_u16x16));
  }
  convert_some(source + i, target + i, count - i);
  _mm_sfence();
}

} // namespace wdsbench::half

#endif
