#include "batch/workers.hpp"

#include "files/fork.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace wdsbench::batch {

namespace {

std::int64_t steady_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

double to_seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

} // namespace

/// The next unit, the threads that work on the run, and the error of the lowest failed unit.
struct Run::State {
  State(std::size_t unit_count, std::size_t thread_count, std::function<void(std::size_t)> do_work)
      : count(unit_count), seats(std::min(thread_count, unit_count)), work(std::move(do_work)) {}

  void drain() {
    const std::int64_t start = steady_nanoseconds();
    for (;;) {
      const std::size_t unit = next.fetch_add(1, std::memory_order_relaxed);
      if (unit >= count) {
        break;
      }
      try {
        work(unit);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (unit < error_unit) {
          error_unit = unit;
          error = std::current_exception();
        }
        stop();
      }
    }
    busy.fetch_add(steady_nanoseconds() - start, std::memory_order_relaxed);
  }

  void stop() { next.store(count, std::memory_order_relaxed); }

  [[nodiscard]] bool exhausted() const { return next.load(std::memory_order_relaxed) >= count; }

  const std::size_t count;
  std::size_t seats;      ///< Threads that may still join; under the pool's mutex.
  std::size_t active = 0; ///< Threads at work; under the pool's mutex.
  const std::function<void(std::size_t)> work;
  const std::uint64_t generation = files::fork_generation();
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> busy{0};
  std::atomic<std::int64_t> done_at{0};
  std::mutex error_mutex;
  std::size_t error_unit = SIZE_MAX;
  std::exception_ptr error;
};

class Pool {
public:
  using Handle = std::shared_ptr<Run::State>;

  /// Queues `run` for the pool's threads, of which there will be at least as many as it has seats.
  void start(const Handle &run) {
    {
      const std::lock_guard lock(mutex_);
      while (threads_.size() < run->seats) {
        add_thread();
      }
      queue_.push_back(run);
    }
    wake_.notify_all();
  }

  /// Lets the caller work on `run` too.
  void join(Run::State &run) {
    {
      const std::lock_guard lock(mutex_);
      ++run.active;
    }
    run.drain();
    const std::lock_guard lock(mutex_);
    leave(run);
  }

  /// Returns when no unit of `run` is left or being worked on.
  void wait(Run::State &run) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&run] { return run.exhausted() && run.active == 0; });
    std::erase_if(queue_, [&run](const Handle &queued) { return queued.get() == &run; });
  }

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
  void add_thread() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); // faults are raised on the thread that makes them
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    threads_.emplace_back([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Handle run;
      wake_.wait(lock, [this, &run] { return stop_ || (run = take()) != nullptr; });
      if (stop_) {
        return;
      }
      lock.unlock();
      run->drain();
      lock.lock();
      leave(*run);
    }
  }

  /// Takes a seat of the first run with a unit and a seat left and returns the run; null if none.
  Handle take() {
    while (!queue_.empty() && queue_.front()->exhausted()) {
      queue_.pop_front();
    }
    for (const Handle &run : queue_) {
      if (run->seats > 0 && !run->exhausted()) {
        --run->seats;
        ++run->active;
        return run;
      }
    }
    return nullptr;
  }

  void leave(Run::State &run) {
    if (--run.active == 0 && run.exhausted()) {
      run.done_at.store(steady_nanoseconds(), std::memory_order_relaxed);
      done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<Handle> queue_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

namespace {

constinit files::PerProcess<Pool> the_pool;

Pool &pool() { return the_pool.get(); }

} // namespace

Run::Run(std::size_t count, std::size_t threads, std::function<void(std::size_t)> work)
    : state_(std::make_shared<State>(count, threads > 1 ? threads - 1 : threads, std::move(work))),
      helps_(threads != 1) {
  if (count > 0 && threads > 0) {
    pool().start(state_);
  }
}

Run::~Run() {
  if (state_->generation == files::fork_generation() && state_->count > 0) {
    state_->stop();
    pool().wait(*state_);
  }
}

void Run::wait() {
  if (state_->generation != files::fork_generation()) {
    throw std::runtime_error("this work was started before the process was forked; its threads are"
                             " the parent's");
  }
  if (state_->count > 0) {
    if (helps_ && !state_->exhausted()) {
      pool().join(*state_);
    }
    pool().wait(*state_);
  }
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

double Run::busy_seconds() const {
  return to_seconds(state_->busy.load(std::memory_order_relaxed));
}

double Run::done_at() const { return to_seconds(state_->done_at.load(std::memory_order_relaxed)); }

void run_parallel(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)> &work) {
  const std::size_t useful = std::min(threads, count);
  if (useful > 1) {
    const auto state = std::make_shared<Run::State>(count, useful - 1, work);
    pool().start(state);
    pool().join(*state);
    pool().wait(*state);
    if (state->error) {
      std::rethrow_exception(state->error);
    }
    return;
  }
  for (std::size_t unit = 0; unit < count; ++unit) {
    work(unit);
  }
}

} // namespace wdsbench::batch
