#include "files/shard_files.hpp"

#include <algorithm>
#include <stdexcept>

namespace wdsbench::files {

ShardFiles::ShardFiles(std::vector<std::string> paths, std::vector<std::uint64_t> sizes,
                       std::size_t limit, Access access)
    : paths_(std::move(paths)), sizes_(std::move(sizes)), limit_(std::max<std::size_t>(limit, 1)),
      access_(access) {
  if (paths_.size() != sizes_.size()) {
    throw std::invalid_argument("paths and sizes differ in number");
  }
}

std::shared_ptr<const ShardFile> ShardFiles::open(std::size_t shard) {
  if (shard >= paths_.size()) {
    throw std::invalid_argument("shard " + std::to_string(shard) + " is not one of " +
                                std::to_string(paths_.size()));
  }
  State &state = state_.get(paths_.size());
  const std::lock_guard lock(state.mutex);
  Seat &seat = state.seats[shard];
  if (!seat.file) {
    if (state.open.size() >= limit_) {
      state.close_longest_unused();
    }
    seat.file = std::make_shared<const ShardFile>(paths_[shard], sizes_[shard], access_);
    state.open.push_back(shard);
  }
  seat.used = ++state.clock;
  return seat.file;
}

std::size_t ShardFiles::open_count() {
  State &state = state_.get(paths_.size());
  const std::lock_guard lock(state.mutex);
  return state.open.size();
}

void ShardFiles::State::close_longest_unused() {
  const auto oldest = std::min_element(
      open.begin(), open.end(), [this](auto a, auto b) { return seats[a].used < seats[b].used; });
  seats[*oldest].file.reset(); // whoever holds it keeps it open
  *oldest = open.back();
  open.pop_back();
}

} // namespace wdsbench::files
