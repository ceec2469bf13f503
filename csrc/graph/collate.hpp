#pragma once

#include "graph/edge_members.hpp"

/// Joins the edge members of B samples into one disjoint union over samples and layers.
namespace wdsbench::graph {

/// One sample's edges, one list per layer.
struct SampleEdges {
  EdgeRefs edges;
  std::uint64_t tokens = 0; ///< T: nodes of each layer.
  std::uint64_t node_base =
      0; ///< Node of the union where the sample's first requested layer starts.
  std::uint64_t edge_base = 0; ///< Edge of the union where the sample starts.
};

/// Reads and checks the pointers of all samples into `out`, uint32 `[B, L + 1]`. Throws FormatError
/// with `sample` and `member` set.
void read_pointers(const std::vector<SampleEdges> &samples, std::size_t layers_stored,
                   std::uint32_t *out, std::size_t threads);

/// Writes the union's edges of the requested `layers`: `edge_index` int64 `[2, E]` (row stride
/// `edge_count`), `edge_attr` float32 `[E]`. Node t of layer i of a sample is `node_base + i *
/// tokens + t`. `pointers` comes from read_pointers. Throws FormatError for edges that break the
/// rules of edge_rules.hpp, with `sample`, `member` and the offset set.
void collate_edges(const std::vector<SampleEdges> &samples,
                   const std::vector<std::uint64_t> &layers, std::size_t layers_stored,
                   const std::uint32_t *pointers, std::int64_t *edge_index, float *edge_attr,
                   std::uint64_t edge_count, std::size_t threads);

} // namespace wdsbench::graph
