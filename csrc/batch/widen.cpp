#include "batch/widen.hpp"

#include "half/half.hpp"

#include <bit>
#include <cstring>

namespace wdsbench::batch {

namespace {

template <typename Stored> void cast_all(const std::uint8_t *in, float *out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, in + i * sizeof(Stored), sizeof value);
    out[i] = static_cast<float>(value);
  }
}

void widen_bf16(const std::uint8_t *in, float *out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof bits);
    out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
}

} // namespace

void widen(npy::ElementType type, const std::uint8_t *in, float *out, std::size_t count) {
  using npy::ElementType;
  switch (type) {
  case ElementType::f16:
    return half::chosen_kernel().widen(in, out, count);
  case ElementType::bf16:
    return widen_bf16(in, out, count);
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

} // namespace wdsbench::batch
