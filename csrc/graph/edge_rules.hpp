#pragma once

#include "graph/indices.hpp"
#include "npy/header.hpp"

#include <optional>
#include <string>
#include <vector>

/// The rules of stored edges. Packing, verifying, viewing and decoding all apply them from here.
///
/// Edges are three arrays: index unsigned `[2, E]` (sources, then targets), weight float16 `[E]`,
/// pointer uint32 `[lists + 1]` (list n holds edges [pointer[n], pointer[n + 1])). A list is a
/// layer, or a head of a layer. The rules:
/// - the pointer starts at 0, never decreases and ends at E;
/// - source < target < T;
/// - the edges of a list are ordered by target, then source, each once;
/// - a weight lies within 0..1.01: softmax in low precision ends a little above 1.
namespace wdsbench::graph {

/// Largest weight of an edge, and the float16 nearest to it.
constexpr double WEIGHT_MAX = 1.01;
constexpr std::uint16_t WEIGHT_MAX_BITS = 0x3C0A;

/// The array that breaks a rule.
enum class EdgePart : std::uint8_t { index, weight, pointer };

/// Names of the members, for errors.
struct EdgeNames {
  const char *index;
  const char *weight;
  const char *pointer;

  [[nodiscard]] constexpr const char *of(EdgePart part) const {
    return part == EdgePart::index ? index : part == EdgePart::weight ? weight : pointer;
  }
};

constexpr EdgeNames LAYER_NAMES{"edges_index", "edges_weight", "edges_ptr"};
constexpr EdgeNames HEAD_NAMES{"heads_index", "heads_weight", "heads_ptr"};

/// A broken rule and its place.
struct EdgeFault {
  FormatKind kind; ///< dtype, shape or value.
  EdgePart part;
  std::uint64_t offset_bytes; ///< From the start of the array's elements.
  std::string detail;
};

/// How errors name list n: "layer 2", or "layer 2, head 5".
struct ListNames {
  std::size_t heads = 0; ///< Lists of each layer; 0: a list is a layer.
  std::size_t first_layer = 0;

  [[nodiscard]] std::string name(std::size_t list) const;
};

/// Edges in memory, as they are stored; the bytes need no alignment.
struct EdgeArrays {
  const std::uint8_t *pairs = nullptr; ///< Index `[2, count]`.
  std::size_t width = 1;               ///< Bytes of one index: 1, 2 or 4.
  const std::uint8_t *weights = nullptr;
  std::uint64_t count = 0; ///< E.

  [[nodiscard]] std::uint64_t source(std::uint64_t edge) const {
    return load_index(pairs, width, edge);
  }
  [[nodiscard]] std::uint64_t target(std::uint64_t edge) const {
    return load_index(pairs, width, count + edge);
  }
  [[nodiscard]] const std::uint8_t *sources_from(std::uint64_t edge) const {
    return pairs + edge * width;
  }
  [[nodiscard]] const std::uint8_t *targets_from(std::uint64_t edge) const {
    return pairs + (count + edge) * width;
  }
  [[nodiscard]] const std::uint8_t *weights_from(std::uint64_t edge) const {
    return weights + edge * sizeof(std::uint16_t);
  }
};

/// Check dtype and shape; `count` is E, which the pointer gives.
std::optional<EdgeFault> pointer_header_fault(const npy::Header &header, std::size_t lists);
std::optional<EdgeFault> index_header_fault(const npy::Header &header, std::uint64_t count);
std::optional<EdgeFault> weight_header_fault(const npy::Header &header, std::uint64_t count);

/// Checks that the pointer of `lists` lists starts at 0 and never decreases.
std::optional<EdgeFault> pointer_fault(const std::uint32_t *pointer, std::size_t lists);

/// Checks edges [first, first + count), which are one list. The common case costs two passes
/// without branches; only a broken list is searched for its first fault.
std::optional<EdgeFault> list_fault(const EdgeArrays &edges, std::uint64_t first,
                                    std::uint64_t count, std::uint64_t tokens,
                                    const ListNames &names, std::size_t list);

} // namespace wdsbench::graph
