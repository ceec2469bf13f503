#include "batch/workers.hpp"
#include "bytes/format_error.hpp"
#include "graph/edges.hpp"
#include "graph/sketch.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace wdsbench::python {

namespace {

using graph::AttentionView;

/// The maps of all layers `[H, T, T]`, checked and kept alive by the caller's list.
struct Layers {
  std::vector<AttentionView> views;
  std::size_t heads = 0;
  std::size_t tokens = 0;
};

AttentionView view_of(const py::array &attention) {
  const std::string descr = py::str(attention.dtype().attr("str")).cast<std::string>();
  if ((descr != "<f2" && descr != "<f4") || (attention.flags() & py::array::c_style) == 0) {
    throw py::type_error("attention: '" + descr + "' is not C-contiguous '<f2' or '<f4'");
  }
  if (attention.ndim() != 3 || attention.shape(1) != attention.shape(2) ||
      attention.shape(0) == 0) {
    throw py::value_error("attention: needs shape [H, T, T] with at least one head");
  }
  return {attention.data(), descr == "<f2", static_cast<std::size_t>(attention.shape(0)),
          static_cast<std::size_t>(attention.shape(1))};
}

Layers layers_of(const py::list &attentions) {
  Layers layers;
  for (const py::handle &item : attentions) {
    if (!py::isinstance<py::array>(item)) {
      throw py::type_error("attentions: needs a list of NumPy arrays");
    }
    layers.views.push_back(view_of(py::reinterpret_borrow<py::array>(item)));
    const AttentionView &view = layers.views.back();
    if (layers.views.size() == 1) {
      layers.heads = view.heads;
      layers.tokens = view.tokens;
    }
    if (view.heads != layers.heads || view.tokens != layers.tokens) {
      throw py::value_error("attentions: layers differ in heads or tokens");
    }
  }
  return layers;
}

/// Runs `work(layer)` for every layer and names the layer (as `sample`) in what it throws.
template <typename Work>
void for_each_layer(const Layers &layers, std::size_t threads, const Work &work) {
  batch::run_parallel(layers.views.size(), threads, [&](std::size_t layer) {
    try {
      work(layer);
    } catch (FormatError &error) {
      error.sample = layer;
      throw;
    }
  });
}

/// Joins lists of edges: (index uint32 `[2, E]`, weight uint16 `[E]`, pointer uint32 `[lists +
/// 1]`).
py::tuple joined(const std::vector<graph::Edges> &lists) {
  py::array_t<std::uint32_t> pointer(static_cast<py::ssize_t>(lists.size() + 1));
  std::uint32_t *starts = pointer.mutable_data();
  starts[0] = 0;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    starts[i + 1] = starts[i] + static_cast<std::uint32_t>(lists[i].weight.size());
  }
  const auto edges = static_cast<std::size_t>(starts[lists.size()]);
  py::array_t<std::uint32_t> index({py::ssize_t{2}, static_cast<py::ssize_t>(edges)});
  py::array_t<std::uint16_t> weight(static_cast<py::ssize_t>(edges));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const graph::Edges &list = lists[i];
    std::copy(list.source.begin(), list.source.end(), index.mutable_data() + starts[i]);
    std::copy(list.target.begin(), list.target.end(), index.mutable_data() + edges + starts[i]);
    std::copy(list.weight.begin(), list.weight.end(), weight.mutable_data() + starts[i]);
  }
  return py::make_tuple(index, weight, pointer);
}

graph::EdgeRule edge_rule(const std::string &kind, double value) {
  if (!std::isfinite(value) || value < 0.0 || value > 1.0) {
    throw py::value_error("value: " + std::to_string(value) + " is not within 0..1");
  }
  if (kind == "top") {
    return {graph::EdgeRule::Kind::top_share, value};
  }
  if (kind == "threshold") {
    return {graph::EdgeRule::Kind::threshold, value};
  }
  throw py::value_error("kind: '" + kind + "' is not one of 'top', 'threshold'");
}

py::tuple mean_edges(const py::list &attentions, const std::string &kind, double value,
                     std::size_t threads) {
  const graph::EdgeRule rule = edge_rule(kind, value);
  const Layers layers = layers_of(attentions);
  std::vector<graph::Edges> lists(layers.views.size());
  {
    const py::gil_scoped_release release;
    for_each_layer(layers, threads, [&](std::size_t layer) {
      lists[layer] = graph::mean_edges(layers.views[layer], rule);
    });
  }
  return joined(lists);
}

py::tuple head_edges(const py::list &attentions, double threshold, std::size_t threads) {
  if (!std::isfinite(threshold) || threshold < 0.0 || threshold > 1.0) {
    throw py::value_error("threshold: " + std::to_string(threshold) + " is not within 0..1");
  }
  const Layers layers = layers_of(attentions);
  std::vector<graph::Edges> lists(layers.views.size() * layers.heads);
  {
    const py::gil_scoped_release release;
    for_each_layer(layers, threads, [&](std::size_t layer) {
      for (std::size_t head = 0; head < layers.heads; ++head) {
        graph::append_head_edges(layers.views[layer], head, threshold,
                                 lists[layer * layers.heads + head]);
      }
    });
  }
  return joined(lists);
}

py::array_t<float> sketch(const py::list &attentions, std::optional<std::size_t> prompt_length,
                          std::size_t threads) {
  const Layers layers = layers_of(attentions);
  const auto axis = [](std::size_t size) { return static_cast<py::ssize_t>(size); };
  py::array_t<float> out({axis(layers.views.size()), axis(layers.heads), axis(layers.tokens),
                          axis(graph::SKETCH_VALUES)});
  float *values = out.mutable_data();
  {
    const py::gil_scoped_release release;
    const std::size_t head_values = layers.tokens * graph::SKETCH_VALUES;
    for_each_layer(layers, threads, [&](std::size_t layer) {
      for (std::size_t head = 0; head < layers.heads; ++head) {
        graph::sketch_head(layers.views[layer], head, prompt_length.value_or(graph::NO_PROMPT),
                           values + (layer * layers.heads + head) * head_values);
      }
    });
  }
  return out;
}

} // namespace

void bind_attention(py::module_ &module) {
  module.def("mean_edges", &mean_edges, py::arg("attentions"), py::arg("kind"), py::arg("value"),
             py::kw_only(), py::arg("threads") = 1);
  module.def("head_edges", &head_edges, py::arg("attentions"), py::arg("threshold"), py::kw_only(),
             py::arg("threads") = 1);
  module.def("sketch", &sketch, py::arg("attentions"), py::kw_only(), py::arg("prompt_length"),
             py::arg("threads") = 1);
}

} // namespace wdsbench::python
