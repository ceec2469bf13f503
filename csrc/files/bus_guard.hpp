#pragma once

#include <cstddef>

/// Reading a mapped file that somebody cuts: the kernel answers with SIGBUS, here it becomes
/// `false`.
///
/// The handler looks at the thread's own guard: a fault inside the guarded range jumps back to
/// `guarded`, any other is handed to whoever handled SIGBUS before (Python's faulthandler, a
/// sanitizer, the default), so that foreign faults look as they would without us.
namespace wdsbench::files {

/// Installs the handler unless it is the current one; one system call. Others (faulthandler) may
/// put theirs in its place at any time, so it is called for every sample. Threads that do so at
/// once find the same former handler.
void arm_bus_guard();

/// Lets the calling thread take SIGBUS: a fault of a thread that blocks it kills the process.
void unblock_bus_errors();

/// Calls `work(context)`, which reads [first, first + size) of a map. Returns false where the map's
/// file no longer has some page of it: `work` was then left in the middle without running
/// destructors, so it must own nothing.
bool guarded(const void *first, std::size_t size, void (*work)(void *), void *context);

} // namespace wdsbench::files
