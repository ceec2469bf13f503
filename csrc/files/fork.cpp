#include "files/fork.hpp"

#include <pthread.h>

namespace wdsbench::files {

namespace {

constinit std::atomic<std::uint64_t> generation{0};

void count_fork() { generation.fetch_add(1); }

/// Registered when the code is loaded: a first use that a fork interrupts would leave the guard of
/// a local static taken for ever in the child.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, count_fork);

} // namespace

std::uint64_t fork_generation() { return generation.load(); }

} // namespace wdsbench::files
