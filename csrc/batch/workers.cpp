#include "batch/workers.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

namespace wdsbench::batch {

namespace {

/// One call of run_parallel: a counter that hands out units, and the error of the lowest failed
/// one.
struct Run {
  explicit Run(std::size_t count, const std::function<void(std::size_t)> &work)
      : count(count), work(work) {}

  void drain() {
    for (;;) {
      const std::size_t unit = next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= count) {
        return;
      }
      try {
        work(unit);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (unit < error_unit) {
          error_unit = unit;
          error = std::current_exception();
        }
        next.store(count, std::memory_order_relaxed);
      }
    }
  }

  const std::size_t count;
  const std::function<void(std::size_t)> &work;
  std::atomic<std::size_t> next{0};
  std::mutex error_mutex;
  std::size_t error_unit = SIZE_MAX;
  std::exception_ptr error;
};

class Pool {
public:
  /// Lets `helpers` threads drain `run` beside the caller.
  void run(Run &run, std::size_t helpers) {
    {
      const std::lock_guard lock(mutex_);
      while (threads_.size() < helpers) {
        threads_.emplace_back([this] { serve(); });
      }
      current_ = &run;
      open_seats_ = helpers;
      busy_ = 0;
    }
    wake_.notify_all();
    run.drain();
    std::unique_lock lock(mutex_);
    open_seats_ = 0; // whoever has not started yet need not
    done_.wait(lock, [this] { return busy_ == 0; });
    current_ = nullptr;
  }

  std::mutex &turn() { return turn_; }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread &thread : threads_) {
      thread.join();
    }
  }

private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || open_seats_ > 0; });
      if (stop_) {
        return;
      }
      --open_seats_;
      ++busy_;
      Run &run = *current_;
      lock.unlock();
      run.drain();
      lock.lock();
      if (--busy_ == 0) {
        done_.notify_all();
      }
    }
  }

  std::mutex turn_; // held by the one caller the pool works for
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> threads_;
  Run *current_ = nullptr;
  std::size_t open_seats_ = 0;
  std::size_t busy_ = 0;
  bool stop_ = false;
};

std::unique_ptr<Pool> the_pool;
std::mutex pool_mutex;

/// In a forked child the threads are gone and the mutexes may be held by nobody: leave the old pool
/// alone, start anew.
void forget_pool() {
  static_cast<void>(
      the_pool.release()); // NOLINT(bugprone-unused-return-value): its threads live in the parent
  new (&pool_mutex) std::mutex;
}

Pool &pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  const std::lock_guard lock(pool_mutex);
  if (!the_pool) {
    the_pool = std::make_unique<Pool>();
  }
  return *the_pool;
}

} // namespace

void run_parallel(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)> &work) {
  Run run(count, work);
  const std::size_t useful = threads < count ? threads : count;
  if (useful > 1) {
    Pool &shared = pool();
    const std::unique_lock turn(shared.turn(), std::try_to_lock);
    if (turn.owns_lock()) {
      shared.run(run, useful - 1);
    } else {
      run.drain();
    }
  } else {
    run.drain();
  }
  if (run.error) {
    std::rethrow_exception(run.error);
  }
}

} // namespace wdsbench::batch
