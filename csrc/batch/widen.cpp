#include "batch/widen.hpp"

#include "half/half.hpp"

#include <algorithm>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace wdsbench::batch {

namespace {

template <typename Stored> void cast_all(const std::uint8_t *in, float *out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, in + i * sizeof(Stored), sizeof value);
    out[i] = static_cast<float>(value);
  }
}

} // namespace

void widen(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count,
           Stores stores) {
  using npy::ElementType;
  switch (type) {
  case ElementType::f16: {
    const half::KernelEntry &kernel = half::chosen_kernel();
    return (stores == Stores::streaming ? kernel.stream : kernel.widen)(in, out, count);
  }
  case ElementType::f32:
    std::memcpy(out, in, count * sizeof(float));
    return;
  case ElementType::f64:
    return cast_all<double>(in, out, count);
  case ElementType::i8:
    return cast_all<std::int8_t>(in, out, count);
  case ElementType::i16:
    return cast_all<std::int16_t>(in, out, count);
  case ElementType::i32:
    return cast_all<std::int32_t>(in, out, count);
  case ElementType::i64:
    return cast_all<std::int64_t>(in, out, count);
  case ElementType::u8:
  case ElementType::boolean:
    return cast_all<std::uint8_t>(in, out, count);
  case ElementType::u16:
    return cast_all<std::uint16_t>(in, out, count);
  case ElementType::u32:
    return cast_all<std::uint32_t>(in, out, count);
  }
}

void fill_zeros(float *out, std::size_t count, Stores stores) {
#if defined(__x86_64__)
  constexpr std::size_t LANES = 4; // SSE2, part of every x86-64: four stores fill a line
  const std::size_t past = reinterpret_cast<std::uintptr_t>(out) % sizeof(__m128);
  if (stores == Stores::streaming && past % sizeof(float) == 0) {
    const std::size_t head = std::min(count, past == 0 ? 0 : LANES - past / sizeof(float));
    std::fill_n(out, head, 0.0F);
    std::size_t i = head;
    for (; i + LANES <= count; i += LANES) {
      _mm_stream_ps(out + i, _mm_setzero_ps());
    }
    std::fill_n(out + i, count - i, 0.0F);
    _mm_sfence();
    return;
  }
#endif
  static_cast<void>(stores);
  std::fill_n(out, count, 0.0F);
}

} // namespace wdsbench::batch
