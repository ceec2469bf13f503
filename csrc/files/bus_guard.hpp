#pragma once

#include <cstddef>

/// Reads of a mapped file that is truncated meanwhile: the kernel raises SIGBUS, which becomes
/// `false` here.
///
/// The handler looks at the thread's own guard: a fault inside the guarded range jumps back to
/// `guarded`; any other is passed to the previous handler (Python's faulthandler, a
/// sanitizer, the default), so that other faults behave as without this handler.
namespace wdsbench::files {

/// Installs the handler unless it is the current one; one system call. Others (faulthandler) may
/// put theirs in its place at any time, so it is called for every sample. Threads that do so at
/// once find the same former handler.
void arm_bus_guard();

/// Unblocks SIGBUS in the calling thread: a fault in a thread that blocks it kills the process.
void unblock_bus_errors();

/// Calls `work(context)`, which reads [first, first + size) of a map. Returns false if the
/// file no longer has a page of it: `work` was then aborted without running destructors, so it must
/// own nothing.
bool guarded(const void *first, std::size_t size, void (*work)(void *), void *context);

} // namespace wdsbench::files
