#pragma once

#include "graph/attention.hpp"

/// Reduces attention maps to sparse edges: an edge j -> i (j < i) means that token i attends to its
/// predecessor j.
namespace wdsbench::graph {

/// Selects the predecessors of a token that become edges.
struct EdgeRule {
  enum class Kind : std::uint8_t { top_share, threshold };
  Kind kind = Kind::top_share;
  double value = 0.35; ///< Share of the predecessors, or the least weight.
};

/// Edges ordered by target i, then by source j.
struct Edges {
  std::vector<std::uint32_t> source;
  std::vector<std::uint32_t> target;
  std::vector<std::uint16_t> weight; ///< float16 bits.
};

/// Returns the edges of the mean over heads.
///
/// The mean is summed in float64 in head order, divided by H and rounded to float32; all
/// comparisons use that value, and the stored weight is that value rounded to float16. top_share:
/// token i keeps its k = max(1, floor(value * i)) heaviest predecessors, the smaller index first
/// among equals; threshold: all with mean >= value. Token 0 has no predecessor. Throws
/// FormatError(value) if a weight j < i is not finite; `offset_bytes` is the element's place in the
/// map.
Edges mean_edges(const AttentionView &attention, const EdgeRule &rule);

/// Appends the edges of one head whose weight is at least `threshold`, compared as float32 and
/// stored as float16. Throws as `mean_edges` does.
void append_head_edges(const AttentionView &attention, std::size_t head, double threshold,
                       Edges &edges);

} // namespace wdsbench::graph
