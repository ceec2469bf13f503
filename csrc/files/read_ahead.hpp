#pragma once

#include "files/shard_files.hpp"

#include <condition_variable>
#include <deque>
#include <thread>

namespace wdsbench::files {

/// Asks the system for bytes that will be wanted soon, on a thread of its own, in the order of the
/// requests. What lies in the page cache already costs a probe or two. A hint and nothing more: a
/// shard that cannot be opened is left to whoever reads it.
class ReadAhead {
public:
  explicit ReadAhead(std::shared_ptr<ShardFiles> files) : files_(std::move(files)) {}

  /// Queues bytes [offset, offset + size) of a shard. The thread starts with the first request.
  void request(std::size_t shard, std::uint64_t offset, std::uint64_t size);

  /// Forgets what has not been asked for yet.
  void clear();

private:
  struct Range {
    std::size_t shard;
    std::uint64_t offset;
    std::uint64_t size;
  };

  /// The queue of one process and the thread that serves it.
  class Server {
  public:
    explicit Server(std::shared_ptr<ShardFiles> files) : files_(std::move(files)) {}
    ~Server();
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    void request(const Range &range);
    void clear();

  private:
    void serve();

    std::shared_ptr<ShardFiles> files_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Range> queue_;
    std::thread thread_;
    bool stop_ = false;
  };

  std::shared_ptr<ShardFiles> files_;
  PerProcess<Server> server_;
};

} // namespace wdsbench::files
