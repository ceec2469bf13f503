#pragma once

#include "graph/edge_members.hpp"

/// Per-head edges of B samples into one graph a sample: an edge j -> i wherever some head of some
/// wanted layer attends, with the weights of all of them. Source: Frasca et al., Neural
/// message-passing on attention graphs for hallucination detection (2025).
namespace wdsbench::graph {

/// One sample's edges, a list a head: list = layer * heads + head.
struct SampleHeads {
  EdgeRefs edges;
  std::uint64_t tokens = 0;
  std::uint64_t prompt_length = 0; ///< Edges between two tokens of the prompt are left out.
  std::uint64_t node_base = 0;     ///< Node of the batch where the sample starts.
  std::uint64_t edge_base = 0;     ///< Edge of the batch where it starts.
};

struct UnionPlan {
  std::size_t layers_stored = 0;
  std::size_t heads = 0;
  std::vector<std::uint64_t> layers; ///< Wanted, in order of the channels.
};

/// Writes how many edges each sample's union has to `counts`, int64 `[B]`. Throws FormatError as
/// collate_edges does; std::invalid_argument for a layer that is not stored.
void count_union_edges(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                       std::int64_t *counts, std::size_t threads);

/// Writes `edge_index` int64 `[2, E]` (row stride `edge_count`), ordered by sample, target, source,
/// and `edge_attr` float32 `[E, layers * heads]`, 0 where a head does not attend. Node t of a
/// sample is `node_base + t`.
void collate_union(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                   std::int64_t *edge_index, float *edge_attr, std::uint64_t edge_count,
                   std::size_t threads);

} // namespace wdsbench::graph
