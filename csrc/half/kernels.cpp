#include "half/half.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace wdsbench::half {

namespace {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}
bool has_f16c() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}
#endif

/// Constant: a table made at its first use could be incomplete in a forked child.
constexpr KernelEntry KERNELS[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, half_to_float_avx512, half_stream_avx512},
    {"f16c", has_f16c, half_to_float_f16c, half_stream_f16c},
#elif defined(__aarch64__)
    {"neon", always, half_to_float_neon, half_to_float_neon}, // part of every AArch64
#endif
    {"scalar", always, half_to_float_scalar, half_to_float_scalar},
};

constinit std::atomic<const KernelEntry *> chosen{nullptr};

const KernelEntry &choose() {
  const char *wanted = std::getenv("WDSBENCH_HALF_KERNEL");
  std::string names;
  for (const KernelEntry &entry : kernels()) {
    if (wanted == nullptr) {
      if (entry.supported()) {
        return entry;
      }
      continue;
    }
    if (std::string(wanted) == entry.name) {
      if (!entry.supported()) {
        throw std::invalid_argument(std::string("WDSBENCH_HALF_KERNEL=") + wanted +
                                    ": this processor does not have it");
      }
      return entry;
    }
    names += std::string(names.empty() ? "" : ", ") + entry.name;
  }
  throw std::invalid_argument(std::string("WDSBENCH_HALF_KERNEL=") + wanted + ": unknown; one of " +
                              names);
}

} // namespace

std::span<const KernelEntry> kernels() { return KERNELS; }

const KernelEntry &chosen_kernel() {
  const KernelEntry *entry = chosen.load(std::memory_order_relaxed);
  if (entry == nullptr) {
    entry = &choose(); // the same for whoever asks
    chosen.store(entry, std::memory_order_relaxed);
  }
  return *entry;
}

} // namespace wdsbench::half
