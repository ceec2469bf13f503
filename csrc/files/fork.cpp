#include "files/fork.hpp"

#include <atomic>
#include <pthread.h>

namespace wdsbench::files {

namespace {

std::atomic<std::uint64_t> generation{0};

void count_fork() { generation.fetch_add(1); }

} // namespace

std::uint64_t fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return generation.load();
}

} // namespace wdsbench::files
