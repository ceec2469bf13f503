#include "graph/edge_members.hpp"

namespace wdsbench::graph {

namespace {

using batch::MemberReader;

/// Throws a fault, if there is one, with its place in the shard.
void require(const std::optional<EdgeFault> &fault, const MemberReader &reader) {
  if (fault) {
    throw FormatError(fault->kind, reader.payload_offset(fault->offset_bytes), fault->detail);
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
  require(pointer_header_fault(reader.header(), lists), reader);
  reader.read(0, (lists + 1) * sizeof(std::uint32_t), out);
  require(pointer_fault(out, lists), reader);
}

StoredEdges::StoredEdges(const EdgeRefs &edges, const EdgeNames &names, std::uint64_t stored,
                         const char *&member)
    : names_(names), index_(named(edges.index, names.index, member)),
      weight_(named(edges.weight, names.weight, member)) {
  thread_local std::vector<std::uint8_t> index_scratch;
  thread_local std::vector<std::uint8_t> weight_scratch;
  member = names.index;
  require(index_header_fault(index_.header(), stored), index_);
  edges_.count = stored;
  edges_.width = npy::element_size(index_.header().type);
  edges_.pairs = copied(index_, 2 * stored * edges_.width, index_scratch);
  member = names.weight;
  require(weight_header_fault(weight_.header(), stored), weight_);
  edges_.weights = copied(weight_, stored * sizeof(std::uint16_t), weight_scratch);
}

void StoredEdges::check(std::uint64_t first, std::uint64_t count, std::uint64_t tokens,
                        const ListNames &names, std::size_t list, const char *&member) const {
  if (const auto fault = list_fault(edges_, first, count, tokens, names, list)) {
    member = names_.of(fault->part);
    require(fault, fault->part == EdgePart::index ? index_ : weight_);
  }
}

void StoredEdges::shift_indices(std::uint64_t first, std::uint64_t count, std::int64_t shift,
                                std::int64_t *sources, std::int64_t *targets) const {
  graph::shift_indices(edges_.sources_from(first), edges_.width, count, shift, sources);
  graph::shift_indices(edges_.targets_from(first), edges_.width, count, shift, targets);
}

void StoredEdges::widen_weights(std::uint64_t first, std::uint64_t count, float *out) const {
  batch::widen(npy::ElementType::f16, edges_.weights_from(first), out, count,
               batch::Stores::cached);
}

} // namespace wdsbench::graph
