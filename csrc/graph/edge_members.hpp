#pragma once

#include "batch/decode.hpp"
#include "batch/workers.hpp"
#include "files/bus_guard.hpp"
#include "graph/indices.hpp"

#include <functional>
#include <string>
#include <vector>

/// The three members of stored edges: index unsigned `[2, E]` (sources, targets), weight float16
/// `[E]`, pointer uint32 `[lists + 1]` (edges of list i are [pointer[i], pointer[i + 1])). A list
/// is a layer, or a head of a layer.
namespace wdsbench::graph {

struct EdgeRefs {
  batch::MemberRef index;
  batch::MemberRef weight;
  batch::MemberRef pointer;
};

/// What the members are called, for errors.
struct EdgeNames {
  const char *index;
  const char *weight;
  const char *pointer;
};

constexpr EdgeNames LAYER_NAMES{"edges_index", "edges_weight", "edges_ptr"};
constexpr EdgeNames HEAD_NAMES{"heads_index", "heads_weight", "heads_ptr"};

/// Runs `work(at, sample, member)` for every sample; `work` keeps `member` at the name of what it
/// reads, which an error then carries.
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

  [[nodiscard]] std::uint64_t source(std::uint64_t edge) const {
    return load_index(pairs_, width_, edge);
  }
  [[nodiscard]] std::uint64_t target(std::uint64_t edge) const {
    return load_index(pairs_, width_, stored_ + edge);
  }

  /// Checks edges [first, first + count): each runs from a smaller to a larger index below `tokens`
  /// and has a finite weight. Throws FormatError(value) for the first that does not, sets `member`
  /// to where it stands; `list` names their layer (and head).
  void check(std::uint64_t first, std::uint64_t count, std::uint64_t tokens,
             const std::function<std::string()> &list, const char *&member) const;

  /// Writes the sources, and the targets, of edges [first, first + count), `shift` added to each.
  void shift_indices(std::uint64_t first, std::uint64_t count, std::int64_t shift,
                     std::int64_t *sources, std::int64_t *targets) const;

  /// Writes the weights of edges [first, first + count) as float32.
  void widen_weights(std::uint64_t first, std::uint64_t count, float *out) const;

private:
  [[nodiscard]] const std::uint8_t *index(std::uint64_t at) const { return pairs_ + at * width_; }
  [[nodiscard]] const std::uint8_t *half(std::uint64_t at) const {
    return weights_ + at * sizeof(std::uint16_t);
  }
  [[nodiscard]] bool sound(std::uint64_t first, std::uint64_t count, std::uint64_t tokens) const;

  const EdgeNames &names_;
  batch::MemberReader index_;
  batch::MemberReader weight_;
  std::uint64_t stored_;
  std::size_t width_;
  const std::uint8_t *pairs_ = nullptr;
  const std::uint8_t *weights_ = nullptr;
};

} // namespace wdsbench::graph
