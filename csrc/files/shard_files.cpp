#include "files/shard_files.hpp"

#include <algorithm>
#include <stdexcept>

namespace wdsbench::files {

ShardFiles::ShardFiles(std::vector<std::string> paths, std::vector<std::uint64_t> sizes,
                       std::size_t limit, Access access)
    : paths_(std::move(paths)), sizes_(std::move(sizes)), limit_(std::max<std::size_t>(limit, 1)),
      access_(access), seats_(paths_.size()) {
  if (paths_.size() != sizes_.size()) {
    throw std::invalid_argument("paths and sizes differ in number");
  }
}

std::shared_ptr<const ShardFile> ShardFiles::open(std::size_t shard) {
  if (shard >= seats_.size()) {
    throw std::invalid_argument("shard " + std::to_string(shard) + " is not one of " +
                                std::to_string(seats_.size()));
  }
  const std::lock_guard lock(mutex_);
  Seat &seat = seats_[shard];
  if (!seat.file) {
    if (open_.size() >= limit_) {
      close_longest_unused();
    }
    seat.file = std::make_shared<const ShardFile>(paths_[shard], sizes_[shard], access_);
    open_.push_back(shard);
  }
  seat.used = ++clock_;
  return seat.file;
}

std::size_t ShardFiles::open_count() {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

void ShardFiles::close_longest_unused() {
  const auto oldest = std::min_element(open_.begin(), open_.end(), [this](auto a, auto b) {
    return seats_[a].used < seats_[b].used;
  });
  seats_[*oldest].file.reset(); // whoever holds it keeps it open
  *oldest = open_.back();
  open_.pop_back();
}

} // namespace wdsbench::files
