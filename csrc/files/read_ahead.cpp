#include "files/read_ahead.hpp"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <sys/uio.h>

namespace wdsbench::files {

namespace {

/// One request to the system; larger ones are cut, so that `stop_` is noticed.
constexpr std::uint64_t CHUNK_BYTES = std::uint64_t{4} << 20;

/// A chunk counts as cached where its ends and these inner places are.
constexpr std::uint64_t PROBES = 4;

#if defined(__linux__)
bool is_cached(int descriptor, std::uint64_t offset) {
  std::uint8_t byte;
  const iovec place{&byte, 1};
  return ::preadv2(descriptor, &place, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}
#endif

void read_ahead(int descriptor, std::uint64_t offset, std::uint64_t size) {
#if defined(__linux__)
  bool cached = true;
  for (std::uint64_t probe = 0; cached && probe <= PROBES; ++probe) {
    cached = is_cached(descriptor, offset + (size - 1) * probe / PROBES);
  }
  if (!cached) {
    static_cast<void>(::posix_fadvise(descriptor, static_cast<off_t>(offset),
                                      static_cast<off_t>(size), POSIX_FADV_WILLNEED));
  }
#elif defined(F_RDADVISE)
  radvisory advice{static_cast<off_t>(offset), static_cast<int>(size)};
  static_cast<void>(::fcntl(descriptor, F_RDADVISE, &advice));
#endif
}

} // namespace

void ReadAhead::request(std::size_t shard, std::uint64_t offset, std::uint64_t size) {
  if (size > 0) {
    server_.get(files_).request({shard, offset, size});
  }
}

void ReadAhead::clear() { server_.get(files_).clear(); }

ReadAhead::Server::~Server() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ReadAhead::Server::request(const Range &range) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      sigset_t all;
      sigset_t before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      thread_ = std::thread([this] { serve(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    queue_.push_back(range);
  }
  wake_.notify_one();
}

void ReadAhead::Server::clear() {
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

void ReadAhead::Server::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) {
      return;
    }
    Range &first = queue_.front();
    const Range chunk{first.shard, first.offset, std::min(first.size, CHUNK_BYTES)};
    first.offset += chunk.size;
    first.size -= chunk.size;
    if (first.size == 0) {
      queue_.pop_front();
    }
    lock.unlock();
    try {
      const auto file = files_->open(chunk.shard);
      if (chunk.offset < file->size()) {
        read_ahead(file->descriptor(), chunk.offset,
                   std::min(chunk.size, file->size() - chunk.offset));
      }
    } catch (const std::exception &) {
      // The reader of these bytes meets the same error and reports it.
    }
    lock.lock();
  }
}

} // namespace wdsbench::files
