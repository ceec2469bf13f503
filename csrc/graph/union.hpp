#pragma once

#include "graph/edge_members.hpp"

/// Joins the per-head edges of each of B samples into one graph: an edge j -> i if any head of any
/// requested layer has it, with the weights of all of them. Source: Frasca et al., Neural
/// message-passing on attention graphs for hallucination detection (2025).
namespace wdsbench::graph {

/// One sample's edges, one list per head: list = layer * heads + head.
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
  std::vector<std::uint64_t> layers; ///< Requested layers, in order of the channels.
};

/// Writes the number of edges of each sample's union to `counts`, int64 `[B]`. Throws FormatError
/// as collate_edges does; std::invalid_argument for a layer that is not stored.
void count_union_edges(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                       std::int64_t *counts, std::size_t threads);

/// Writes `edge_index` int64 `[2, E]` (row stride `edge_count`), ordered by sample, target, source,
/// and `edge_attr` float32 `[E, layers * heads]`, 0 if a head has no such edge. Node t of a
/// sample is `node_base + t`.
void collate_union(const std::vector<SampleHeads> &samples, const UnionPlan &plan,
                   std::int64_t *edge_index, float *edge_attr, std::uint64_t edge_count,
                   std::size_t threads);

} // namespace wdsbench::graph
