#include "graph/edge_members.hpp"

#include "graph/indices.hpp"

namespace wdsbench::graph {

namespace {

using batch::MemberReader;
using npy::ElementType;

void require_shape(bool right, const MemberReader &reader, const std::string &wanted) {
  if (!right) {
    throw FormatError(FormatKind::shape, reader.payload_offset(0),
                      "shape " + reader.header().shape_text() + ", expected " + wanted);
  }
}

void require_type(bool right, const MemberReader &reader, const char *wanted) {
  if (!right) {
    throw FormatError(FormatKind::dtype, reader.payload_offset(0),
                      std::string("'") + npy::element_name(reader.header().type) + "' is not " +
                          wanted);
  }
}

/// Returns the first `count` payload bytes, copied into `scratch`, which grows as needed.
const std::uint8_t *copied(const MemberReader &reader, std::size_t count,
                           std::vector<std::uint8_t> &scratch) {
  if (scratch.size() < count) {
    scratch.resize(count);
  }
  reader.read(0, count, scratch.data());
  return scratch.data();
}

/// Names the member before it is opened.
const batch::MemberRef &named(const batch::MemberRef &ref, const char *name, const char *&member) {
  member = name;
  return ref;
}

} // namespace

void read_pointer(const batch::MemberRef &pointer, std::size_t lists, std::uint32_t *out) {
  const MemberReader reader(pointer);
  const npy::Header &header = reader.header();
  require_type(header.type == ElementType::u32, reader, "'<u4'");
  require_shape(header.axes == 1 && header.shape[0] == lists + 1, reader,
                "(" + std::to_string(lists + 1) + ",)");
  reader.read(0, (lists + 1) * sizeof(std::uint32_t), out);
  for (std::size_t list = 0; list <= lists; ++list) {
    if (list == 0 ? out[0] != 0 : out[list] < out[list - 1]) {
      throw FormatError(FormatKind::value, reader.payload_offset(list * sizeof(std::uint32_t)),
                        "pointer " + std::to_string(list) + " is " + std::to_string(out[list]) +
                            "; pointers start at 0 and never fall");
    }
  }
}

StoredEdges::StoredEdges(const EdgeRefs &edges, const EdgeNames &names, std::uint64_t stored,
                         const char *&member)
    : names_(names), index_(named(edges.index, names.index, member)),
      weight_(named(edges.weight, names.weight, member)), stored_(stored),
      width_(npy::element_size(index_.header().type)) {
  thread_local std::vector<std::uint8_t> index_scratch;
  thread_local std::vector<std::uint8_t> weight_scratch;
  member = names.index;
  const npy::Header &index = index_.header();
  require_type(index.type == ElementType::u8 || index.type == ElementType::u16 ||
                   index.type == ElementType::u32,
               index_, "an unsigned type of 1, 2 or 4 bytes");
  require_shape(index.axes == 2 && index.shape[0] == 2 && index.shape[1] == stored, index_,
                "(2, " + std::to_string(stored) + ") as the pointer says");
  pairs_ = copied(index_, 2 * stored * width_, index_scratch);
  member = names.weight;
  require_type(weight_.header().type == ElementType::f16, weight_, "'<f2'");
  require_shape(weight_.header().axes == 1 && weight_.header().shape[0] == stored, weight_,
                "(" + std::to_string(stored) + ",) as the pointer says");
  weights_ = copied(weight_, stored * sizeof(std::uint16_t), weight_scratch);
}

bool StoredEdges::sound(std::uint64_t first, std::uint64_t count, std::uint64_t tokens) const {
  return pairs_sound(index(first), index(stored_ + first), width_, count, tokens) &&
         halves_finite(half(first), count);
}

void StoredEdges::check(std::uint64_t first, std::uint64_t count, std::uint64_t tokens,
                        const std::function<std::string()> &list, const char *&member) const {
  if (sound(first, count, tokens)) {
    return;
  }
  for (std::uint64_t edge = first; edge < first + count; ++edge) {
    const std::uint64_t from = source(edge);
    const std::uint64_t to = target(edge);
    const auto arrow = [&] { return std::to_string(from) + " -> " + std::to_string(to); };
    if (to >= tokens || from >= to) {
      member = names_.index;
      throw FormatError(FormatKind::value, index_.payload_offset(edge * width_),
                        list() + ": edge " + arrow() + " among " + std::to_string(tokens) +
                            " tokens; an edge runs from a smaller to a larger index");
    }
    if (!halves_finite(half(edge), 1)) {
      member = names_.weight;
      throw FormatError(FormatKind::value, weight_.payload_offset(edge * sizeof(std::uint16_t)),
                        list() + ": the weight of edge " + arrow() + " is not finite");
    }
  }
}

void StoredEdges::shift_indices(std::uint64_t first, std::uint64_t count, std::int64_t shift,
                                std::int64_t *sources, std::int64_t *targets) const {
  graph::shift_indices(index(first), width_, count, shift, sources);
  graph::shift_indices(index(stored_ + first), width_, count, shift, targets);
}

void StoredEdges::widen_weights(std::uint64_t first, std::uint64_t count, float *out) const {
  batch::widen(ElementType::f16, half(first), out, count, batch::Stores::cached);
}

} // namespace wdsbench::graph
