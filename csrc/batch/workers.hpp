#pragma once

#include <cstddef>
#include <functional>
#include <memory>

/// One pool of threads for all decoding of a process. Threads start at the first use, live on, take
/// no signals (Python's handlers belong on its main thread), and are forgotten in a forked child.
namespace wdsbench::batch {

/// Calls of `work(0) ... work(count - 1)`, each once, spread over threads in the background.
///
/// An exception of `work` stops the hand-out of further units; of several, that of the lowest unit
/// counts (units are handed out in order, so every lower one has run). Runs are served in the order
/// of their start; a thread that finds no unit left in one continues with the next.
class Run {
public:
  /// Starts on up to `threads` threads, one of them the caller's where there are several: it works
  /// while it waits. (With all of them in the background, they would fight the caller for its core
  /// while it prepares the next run.) With 0 threads nothing starts; `wait` does all the work.
  Run(std::size_t count, std::size_t threads, std::function<void(std::size_t)> work);

  /// Hands out no more units and returns when none is being worked on.
  ~Run();
  Run(const Run &) = delete;
  Run &operator=(const Run &) = delete;

  /// Returns when every unit is done; throws what `work` threw. In a forked child, where the
  /// threads do not exist, throws std::runtime_error.
  void wait();

  /// Returns the seconds that threads have spent in `work`, summed.
  [[nodiscard]] double busy_seconds() const;

  /// Returns when the last unit was done, in seconds of the steady clock; 0 before that.
  [[nodiscard]] double done_at() const;

private:
  friend void run_parallel(std::size_t, std::size_t, const std::function<void(std::size_t)> &);
  friend class Pool;
  struct State;
  std::shared_ptr<State> state_;
  bool helps_;
};

/// Runs `work` as above on up to `threads` threads, the caller's among them, and returns when all
/// is done.
void run_parallel(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)> &work);

} // namespace wdsbench::batch
