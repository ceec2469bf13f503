#pragma once

#include "files/fork.hpp"
#include "files/shard_file.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace wdsbench::files {

/// The shards of a data set, numbered as in its index; opened when first needed and kept open;
/// beyond a limit the least recently used is closed. Any thread may use it; a forked child opens
/// its own files.
class ShardFiles {
public:
  ShardFiles(std::vector<std::string> paths, std::vector<std::uint64_t> sizes, std::size_t limit,
             Access access);

  [[nodiscard]] std::size_t count() const { return paths_.size(); }

  /// Returns a shard, which stays open while it is held. Throws as ShardFile's constructor does,
  /// and std::invalid_argument for a number without a shard.
  std::shared_ptr<const ShardFile> open(std::size_t shard);

  /// Returns how many shards are open now.
  std::size_t open_count();

private:
  struct Seat {
    std::shared_ptr<const ShardFile> file;
    std::uint64_t used = 0; ///< Clock of the last time it was asked for.
  };

  /// The open files of one process.
  struct State {
    explicit State(std::size_t shards) : seats(shards) {}
    void close_longest_unused();

    std::mutex mutex;
    std::vector<Seat> seats;
    std::vector<std::size_t> open;
    std::uint64_t clock = 0;
  };

  const std::vector<std::string> paths_;
  const std::vector<std::uint64_t> sizes_;
  const std::size_t limit_;
  const Access access_;
  PerProcess<State> state_;
};

} // namespace wdsbench::files
