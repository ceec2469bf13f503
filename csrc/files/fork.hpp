#pragma once

#include <cstdint>

namespace wdsbench::files {

/// Returns how many forks lie between the process that first asked and this one. Whoever owns
/// threads or locks keeps the number beside them: where it has changed, they were the parent's and
/// are left alone.
std::uint64_t fork_generation();

} // namespace wdsbench::files
