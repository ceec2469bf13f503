// VCVTPH2PS ymm, m128: 8 halves an instruction; 2 uops, one a cycle on Haswell to Zen 4
// (uops.info). Tail: fewer than 8 halves pass through a zeroed 8-lane buffer, so nothing past the
// ends is touched. Streaming: such a head up to 32 bytes, then VMOVNTPS.

#include "half/half.hpp"

#if defined(__x86_64__)

#include <cstring>
#include <immintrin.h>

namespace wdsbench::half {

namespace {

constexpr std::size_t LANES = 8;
constexpr std::size_t STORE_BYTES = LANES * sizeof(float);

/// Converts fewer than LANES halves.
__attribute__((target("avx2,f16c"))) void convert_some(const std::uint16_t *source, float *target,
                                                       std::size_t count) noexcept {
  std::uint16_t some_in[LANES] = {};
  float some_out[LANES];
  std::memcpy(some_in, source, count * sizeof(std::uint16_t));
  const __m128i bits_u16x8 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(some_in));
  _mm256_storeu_ps(some_out, _mm256_cvtph_ps(bits_u16x8));
  std::memcpy(target, some_out, count * sizeof(float));
}

} // namespace

__attribute__((target("avx2,f16c"))) void half_to_float_f16c(const void *in, void *out,
                                                             std::size_t count) noexcept {
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  std::size_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const __m128i bits_u16x8 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + i));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(bits_u16x8));
  }
  if (i != count) {
    convert_some(source + i, target + i, count - i);
  }
}

__attribute__((target("avx2,f16c"))) void half_stream_f16c(const void *in, void *out,
                                                           std::size_t count) noexcept {
  const std::size_t past_store = reinterpret_cast<std::uintptr_t>(out) % STORE_BYTES;
  const std::size_t head = past_store == 0 ? 0 : (STORE_BYTES - past_store) / sizeof(float);
  if (past_store % sizeof(float) != 0 || head > count) {
    half_to_float_f16c(in, out, count);
    return;
  }
  const auto *source = static_cast<const std::uint16_t *>(in);
  auto *target = static_cast<float *>(out);
  convert_some(source, target, head);
  std::size_t i = head;
  for (; i + LANES <= count; i += LANES) {
    const __m128i bits_u16x8 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + i));
    _mm256_stream_ps(target + i, _mm256_cvtph_ps(bits_u16x8));
  }
  convert_some(source + i, target + i, count - i);
  _mm_sfence();
}

} // namespace wdsbench::half

#endif
