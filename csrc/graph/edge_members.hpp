#pragma once

#include "batch/decode.hpp"
#include "batch/workers.hpp"
#include "files/bus_guard.hpp"
#include "graph/edge_rules.hpp"

#include <string>
#include <vector>

/// Reads the three members of stored edges and checks them by the rules of edge_rules.hpp.
namespace wdsbench::graph {

struct EdgeRefs {
  batch::MemberRef index;
  batch::MemberRef weight;
  batch::MemberRef pointer;
};

/// Runs `work(at, sample, member)` for every sample; `work` sets `member` to the name of the
/// member that it reads, which an error then names.
template <typename Sample, typename Work>
void for_each_sample(const std::vector<Sample> &samples, std::size_t threads, const Work &work) {
  batch::run_parallel(samples.size(), threads, [&](std::size_t at) {
    const char *member = "";
    files::arm_bus_guard();
    try {
      work(at, samples[at], member);
    } catch (FormatError &error) {
      batch::throw_located(error, *samples[at].edges.index.file, at, member);
    }
  });
}

/// Reads and checks a pointer of `lists + 1` entries: it starts at 0 and never falls.
void read_pointer(const batch::MemberRef &pointer, std::size_t lists, std::uint32_t *out);

/// Edges of one sample in memory; views of thread-local scratch, valid until the next read.
class StoredEdges {
public:
  /// Reads index and weight, which must hold `stored` edges. Sets `member` as it goes.
  StoredEdges(const EdgeRefs &edges, const EdgeNames &names, std::uint64_t stored,
              const char *&member);

  [[nodiscard]] const EdgeArrays &edges() const { return edges_; }

  /// Checks edges [first, first + count), list `list` of the sample, against the rules. Throws
  /// FormatError for the first fault and sets `member` to the array that has it.
  void check(std::uint64_t first, std::uint64_t count, std::uint64_t tokens, const ListNames &names,
             std::size_t list, const char *&member) const;

  /// Writes the sources, and the targets, of edges [first, first + count), `shift` added to each.
  void shift_indices(std::uint64_t first, std::uint64_t count, std::int64_t shift,
                     std::int64_t *sources, std::int64_t *targets) const;

  /// Writes the weights of edges [first, first + count) as float32.
  void widen_weights(std::uint64_t first, std::uint64_t count, float *out) const;

private:
  const EdgeNames &names_;
  batch::MemberReader index_;
  batch::MemberReader weight_;
  EdgeArrays edges_;
};

} // namespace wdsbench::graph
