#pragma once

#include "files/fork.hpp"
#include "files/shard_file.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace wdsbench::files {

/// The shards of a data set, numbered as in its index; opened when first needed and kept open, the
/// longest unused closed beyond a limit. Any thread may ask; a forked child opens its own.
class ShardFiles {
public:
  ShardFiles(std::vector<std::string> paths, std::vector<std::uint64_t> sizes, std::size_t limit,
             Access access);

  [[nodiscard]] std::size_t count() const { return paths_.size(); }

  /// Returns a shard, open for as long as it is held. Throws what ShardFile's constructor does;
  /// std::invalid_argument where there is no such shard.
  std::shared_ptr<const ShardFile> open(std::size_t shard);

  /// Returns how many shards are open now.
  std::size_t open_count();

private:
  struct Seat {
    std::shared_ptr<const ShardFile> file;
    std::uint64_t used = 0; ///< Clock of the last time it was asked for.
  };

  /// What is open in one process.
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
