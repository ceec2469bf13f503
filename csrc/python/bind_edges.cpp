#include "graph/edge_rules.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace wdsbench::python {

namespace {

/// Edges as arguments: three arrays of any dtype and shape, which the rules then judge.
class EdgeListsArg {
public:
  EdgeListsArg(const py::array &index, const py::array &weight, const py::array &pointer,
               const graph::ListNames &names)
      : index_(index), weight_(weight), pointer_(pointer), names_(names) {}

  void check(std::size_t tokens, std::size_t layers) const {
    using graph::EdgePart;
    const std::size_t lists = layers * std::max<std::size_t>(names_.heads, 1);
    require(graph::pointer_header_fault(header_of(pointer_, EdgePart::pointer), lists));
    std::vector<std::uint32_t> starts(lists + 1);
    std::memcpy(starts.data(), pointer_.data(), starts.size() * sizeof(std::uint32_t));
    require(graph::pointer_fault(starts.data(), lists));
    const npy::Header index = header_of(index_, EdgePart::index);
    require(graph::index_header_fault(index, starts.back()));
    require(graph::weight_header_fault(header_of(weight_, EdgePart::weight), starts.back()));
    const graph::EdgeArrays edges{static_cast<const std::uint8_t *>(index_.data()),
                                  npy::element_size(index.type),
                                  static_cast<const std::uint8_t *>(weight_.data()), starts.back()};
    const py::gil_scoped_release release;
    for (std::size_t list = 0; list < lists; ++list) {
      require(graph::list_fault(edges, starts[list], starts[list + 1] - starts[list], tokens,
                                names_, list),
              list);
    }
  }

private:
  /// Throws a fault, if there is one; `list` is the list that has it.
  void require(const std::optional<graph::EdgeFault> &fault,
               std::size_t list = FormatError::NO_SAMPLE) const {
    if (fault) {
      FormatError error(fault->kind, fault->offset_bytes, fault->detail);
      error.member = name(fault->part);
      error.sample = list;
      throw error;
    }
  }

  /// Returns dtype and shape of an array as those of an npy member.
  [[nodiscard]] npy::Header header_of(const py::array &array, graph::EdgePart part) const {
    const std::string descr = py::str(array.dtype().attr("str")).cast<std::string>();
    const auto type = npy::element_type(descr);
    if (!type || array.ndim() > static_cast<py::ssize_t>(npy::Header::MAX_AXES)) {
      require(graph::EdgeFault{FormatKind::dtype, part, 0,
                               "'" + descr + "' of " + std::to_string(array.ndim()) +
                                   " axes is never stored"});
    }
    if ((array.flags() & py::array::c_style) == 0) {
      throw py::value_error(std::string(name(part)) + ": must be C-contiguous");
    }
    npy::Header header;
    header.type = type.value_or(npy::ElementType::boolean);
    header.axes = static_cast<std::size_t>(array.ndim());
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
      header.shape[static_cast<std::size_t>(axis)] = static_cast<std::uint64_t>(array.shape(axis));
    }
    return header;
  }

  [[nodiscard]] const char *name(graph::EdgePart part) const {
    return (names_.heads == 0 ? graph::LAYER_NAMES : graph::HEAD_NAMES).of(part);
  }

  const py::array &index_;
  const py::array &weight_;
  const py::array &pointer_;
  graph::ListNames names_;
};

void check_edge_lists(const py::array &index, const py::array &weight, const py::array &pointer,
                      std::size_t tokens, std::size_t layers, std::size_t heads,
                      std::size_t first_layer) {
  EdgeListsArg(index, weight, pointer, {heads, first_layer}).check(tokens, layers);
}

} // namespace

void bind_edges(py::module_ &module) {
  module.attr("WEIGHT_MAX") = graph::WEIGHT_MAX;
  module.def("check_edge_lists", &check_edge_lists, py::arg("index"), py::arg("weight"),
             py::arg("pointer"), py::kw_only(), py::arg("tokens"), py::arg("layers"),
             py::arg("heads") = 0, py::arg("first_layer") = 0);
}

} // namespace wdsbench::python
