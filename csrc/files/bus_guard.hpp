#pragma once

#include <cstddef>

/// Reading a mapped file that somebody cuts: the kernel answers with SIGBUS, here it becomes
/// `false`.
///
/// The handler looks at the thread's own guard: a fault inside the guarded range jumps back to
/// `guarded`, any other is handed to whoever handled SIGBUS before (Python's faulthandler, a
/// sanitizer, the default), so that foreign faults look as they would without us.
namespace wdsbench::files {

/// Installs the handler unless it is the current one; cheap enough for every batch. Others
/// (faulthandler) may have put theirs in its place since.
void arm_bus_guard();

/// Calls `work(context)`, which reads [first, first + size) of a map. Returns false where the map's
/// file no longer has some page of it: `work` was then left in the middle without running
/// destructors, so it must own nothing.
bool guarded(const void *first, std::size_t size, void (*work)(void *), void *context);

} // namespace wdsbench::files
