#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace wdsbench::files {

/// Returns the number of forks between the process that loaded this code and this one.
std::uint64_t fork_generation();

/// A `T` for each process: a forked child makes its own. Its copy of the parent's may hold locks
/// that are never released, threads that do not exist, and partial changes; it is neither used nor
/// destroyed.
template <typename T> class PerProcess {
public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess &) = delete;
  PerProcess &operator=(const PerProcess &) = delete;

  ~PerProcess() {
    const Seat *seat = seat_.load();
    if (seat != nullptr && seat->generation == fork_generation()) {
      delete seat;
    }
  }

  /// Returns this process's `T`, constructed from `arguments` at the first call.
  template <typename... Arguments> T &get(const Arguments &...arguments) {
    Seat *seat = seat_.load();
    while (seat == nullptr || seat->generation != fork_generation()) {
      auto made = std::make_unique<Seat>(arguments...);
      if (seat_.compare_exchange_strong(seat, made.get())) {
        seat = made.release();
      }
    }
    return seat->value;
  }

private:
  struct Seat {
    template <typename... Arguments>
    explicit Seat(const Arguments &...arguments) : value(arguments...) {}
    T value;
    const std::uint64_t generation = fork_generation();
  };

  std::atomic<Seat *> seat_{nullptr};
};

} // namespace wdsbench::files
