#include "graph/edge_rules.hpp"

#include "half/half.hpp"

#include <cstdio>
#include <cstring>

namespace wdsbench::graph {

namespace {

using npy::ElementType;

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

EdgeFault dtype_fault(EdgePart part, const npy::Header &header, const char *expected) {
  return {FormatKind::dtype, part, 0,
          std::string("dtype is '") + npy::element_name(header.type) + "', expected " + expected};
}

EdgeFault shape_fault(EdgePart part, const npy::Header &header, const std::string &expected) {
  return {FormatKind::shape, part, 0, "shape " + header.shape_text() + ", expected " + expected};
}

float weight_of(const EdgeArrays &edges, std::uint64_t edge) {
  std::uint16_t bits;
  std::memcpy(&bits, edges.weights_from(edge), sizeof bits);
  return half::widen_one(bits);
}

/// Returns the fault of one edge of a list that starts at edge `first`, if it has one.
std::optional<EdgeFault> edge_fault(const EdgeArrays &edges, std::uint64_t first,
                                    std::uint64_t edge, std::uint64_t tokens) {
  const auto arrow = [&edges](std::uint64_t at) {
    return std::to_string(edges.source(at)) + " -> " + std::to_string(edges.target(at));
  };
  const std::uint64_t source = edges.source(edge);
  const std::uint64_t target = edges.target(edge);
  if (source >= target || target >= tokens) {
    return EdgeFault{FormatKind::value, EdgePart::index, edge * edges.width,
                     "edge " + arrow(edge) + " of " + std::to_string(tokens) +
                         " tokens; an edge runs from a smaller to a larger index below " +
                         std::to_string(tokens)};
  }
  if (edge > first && (target < edges.target(edge - 1) ||
                       (target == edges.target(edge - 1) && source <= edges.source(edge - 1)))) {
    return EdgeFault{FormatKind::value, EdgePart::index, edge * edges.width,
                     "edge " + arrow(edge) + " follows " + arrow(edge - 1) +
                         "; edges of a list are ordered by target, then source, each once"};
  }
  if (!weights_sound(edges.weights_from(edge), 1, WEIGHT_MAX_BITS)) {
    return EdgeFault{FormatKind::value, EdgePart::weight, edge * sizeof(std::uint16_t),
                     "the weight of edge " + arrow(edge) + " is " +
                         number_text(static_cast<double>(weight_of(edges, edge))) +
                         "; attention weights are probabilities from 0 to 1"};
  }
  return std::nullopt;
}

} // namespace

std::string ListNames::name(std::size_t list) const {
  const std::size_t layer = first_layer + (heads == 0 ? list : list / heads);
  return "layer " + std::to_string(layer) +
         (heads == 0 ? "" : ", head " + std::to_string(list % heads));
}

std::optional<EdgeFault> pointer_header_fault(const npy::Header &header, std::size_t lists) {
  if (header.type != ElementType::u32) {
    return dtype_fault(EdgePart::pointer, header, "'<u4'");
  }
  if (header.axes != 1 || header.shape[0] != lists + 1) {
    return shape_fault(EdgePart::pointer, header, "(" + std::to_string(lists + 1) + ",)");
  }
  return std::nullopt;
}

std::optional<EdgeFault> index_header_fault(const npy::Header &header, std::uint64_t count) {
  if (header.type != ElementType::u8 && header.type != ElementType::u16 &&
      header.type != ElementType::u32) {
    return dtype_fault(EdgePart::index, header, "an unsigned type of 1, 2 or 4 bytes");
  }
  if (header.axes != 2 || header.shape[0] != 2 || header.shape[1] != count) {
    return shape_fault(EdgePart::index, header,
                       "(2, " + std::to_string(count) + ") as the pointer says");
  }
  return std::nullopt;
}

std::optional<EdgeFault> weight_header_fault(const npy::Header &header, std::uint64_t count) {
  if (header.type != ElementType::f16) {
    return dtype_fault(EdgePart::weight, header, "'<f2'");
  }
  if (header.axes != 1 || header.shape[0] != count) {
    return shape_fault(EdgePart::weight, header,
                       "(" + std::to_string(count) + ",) as the pointer says");
  }
  return std::nullopt;
}

std::optional<EdgeFault> pointer_fault(const std::uint32_t *pointer, std::size_t lists) {
  for (std::size_t list = 0; list <= lists; ++list) {
    if (list == 0 ? pointer[0] != 0 : pointer[list] < pointer[list - 1]) {
      return EdgeFault{FormatKind::value, EdgePart::pointer, list * sizeof(std::uint32_t),
                       "pointer " + std::to_string(list) + " is " + std::to_string(pointer[list]) +
                           "; pointers start at 0 and never fall"};
    }
  }
  return std::nullopt;
}

std::optional<EdgeFault> list_fault(const EdgeArrays &edges, std::uint64_t first,
                                    std::uint64_t count, std::uint64_t tokens,
                                    const ListNames &names, std::size_t list) {
  if (pairs_sound(edges.sources_from(first), edges.targets_from(first), edges.width, count,
                  tokens) &&
      weights_sound(edges.weights_from(first), count, WEIGHT_MAX_BITS)) {
    return std::nullopt;
  }
  for (std::uint64_t edge = first; edge < first + count; ++edge) {
    if (auto fault = edge_fault(edges, first, edge, tokens)) {
      fault->detail = names.name(list) + ": " + fault->detail;
      return fault;
    }
  }
  return std::nullopt;
}

} // namespace wdsbench::graph
