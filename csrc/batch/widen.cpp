#include "batch/widen.hpp"

#include "half/half.hpp"

#include <algorithm>
#include <array>
#include <cmath>
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

constexpr std::size_t BLOCK_FLOATS = 1024;

/// Copies floats; streaming stores of 16 bytes where `out` allows them.
void store(const float *in, float *out, std::size_t count, Stores stores) {
#if defined(__x86_64__)
  constexpr std::size_t LANES = 4; // SSE2, part of every x86-64: four stores fill a line
  const std::size_t past = reinterpret_cast<std::uintptr_t>(out) % sizeof(__m128);
  if (stores == Stores::streaming && past % sizeof(float) == 0) {
    const std::size_t head = std::min(count, past == 0 ? 0 : LANES - past / sizeof(float));
    std::copy_n(in, head, out);
    std::size_t i = head;
    for (; i + LANES <= count; i += LANES) {
      _mm_stream_ps(out + i, _mm_loadu_ps(in + i));
    }
    std::copy_n(in + i, count - i, out + i);
    _mm_sfence();
    return;
  }
#endif
  static_cast<void>(stores);
  std::copy_n(in, count, out);
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

void normalise(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count,
               Range range, Stores stores) {
  const float width = range.high - range.low;
  if (!(width > 0.0F) || !std::isfinite(width)) {
    fill_zeros(out, count, stores);
    return;
  }
  const std::size_t element_bytes = npy::element_size(type);
  alignas(64) std::array<float, BLOCK_FLOATS> block; // stays in the first-level cache
  for (std::size_t i = 0; i < count; i += block.size()) {
    const std::size_t size = std::min(block.size(), count - i);
    widen(type, in + i * element_bytes, block.data(), size, Stores::cached);
    for (std::size_t k = 0; k < size; ++k) {
      block[k] = (block[k] - range.low) / width;
    }
    store(block.data(), out + i, size, stores);
  }
}

void fill_zeros(float *out, std::size_t count, Stores stores) {
  constexpr std::array<float, BLOCK_FLOATS> ZEROS = {};
  for (std::size_t i = 0; i < count; i += ZEROS.size()) {
    store(ZEROS.data(), out + i, std::min(ZEROS.size(), count - i), stores);
  }
}

} // namespace wdsbench::batch
