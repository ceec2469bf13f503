#pragma once

#include <cstddef>
#include <functional>

namespace wdsbench::batch {

/// Runs `work(0) ... work(count - 1)`, each once, on up to `threads` threads, the caller's among
/// them; returns when all are done. Threads start at the first use, live on, and are dropped in a
/// forked child.
///
/// An exception of `work` stops the hand-out of further units and is thrown here; of several, that
/// of the lowest unit (units are handed out in order, so every lower one has run). A second caller
/// while the pool is busy runs alone.
void run_parallel(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)> &work);

} // namespace wdsbench::batch
