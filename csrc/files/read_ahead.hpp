#pragma once

#include "files/shard_files.hpp"

#include <condition_variable>
#include <deque>
#include <thread>

namespace wdsbench::files {

/// Asks the system for bytes that will be read soon, on its own thread, in the order of the
/// requests. Bytes in the page cache cost a probe or two. Only a hint: a shard that cannot be
/// opened is reported by its reader.
class ReadAhead {
public:
  explicit ReadAhead(std::shared_ptr<ShardFiles> files) : files_(std::move(files)) {}

  /// Queues bytes [offset, offset + size) of a shard. The thread starts with the first request.
  void request(std::size_t shard, std::uint64_t offset, std::uint64_t size);

  /// Drops the queued requests.
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
