#include "files/bus_guard.hpp"
#include "graph/collate.hpp"
#include "graph/union.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"
#include "python/job_table.hpp"

namespace wdsbench::python {

namespace {

#define WDSBENCH_EDGES_COLUMNS(X)                                                                  \
  X(shard)                                                                                         \
  X(index_offset)                                                                                  \
  X(index_size)                                                                                    \
  X(weight_offset)                                                                                 \
  X(weight_size)                                                                                   \
  X(pointer_offset)                                                                                \
  X(pointer_size)                                                                                  \
  X(tokens)                                                                                        \
  X(node_base)                                                                                     \
  X(edge_base)
WDSBENCH_JOB_COLUMNS(EdgesColumn, WDSBENCH_EDGES_COLUMNS)

#define WDSBENCH_HEADS_COLUMNS(X) WDSBENCH_EDGES_COLUMNS(X) X(prompt_length)
WDSBENCH_JOB_COLUMNS(HeadsColumn, WDSBENCH_HEADS_COLUMNS)

template <typename Column>
graph::EdgeRefs edge_refs(const JobTable<Column> &jobs, std::size_t row,
                          const files::ShardFile *file) {
  return {{file, jobs.at(row, Column::index_offset), jobs.at(row, Column::index_size)},
          {file, jobs.at(row, Column::weight_offset), jobs.at(row, Column::weight_size)},
          {file, jobs.at(row, Column::pointer_offset), jobs.at(row, Column::pointer_size)}};
}

std::vector<graph::SampleHeads> sample_heads(const JobTable<HeadsColumn> &jobs,
                                             const JobFiles &files) {
  std::vector<graph::SampleHeads> samples(jobs.rows());
  for (std::size_t b = 0; b < samples.size(); ++b) {
    samples[b] = {
        edge_refs<HeadsColumn>(jobs, b, files.of_row[b]),
        jobs.at(b, HeadsColumn::tokens),
        jobs.at(b, HeadsColumn::prompt_length),
        jobs.at(b, HeadsColumn::node_base),
        jobs.at(b, HeadsColumn::edge_base),
    };
  }
  return samples;
}

std::vector<graph::SampleEdges> sample_edges(const JobTable<EdgesColumn> &jobs,
                                             const JobFiles &files) {
  std::vector<graph::SampleEdges> samples(jobs.rows());
  for (std::size_t b = 0; b < samples.size(); ++b) {
    samples[b] = {
        edge_refs<EdgesColumn>(jobs, b, files.of_row[b]),
        jobs.at(b, EdgesColumn::tokens),
        jobs.at(b, EdgesColumn::node_base),
        jobs.at(b, EdgesColumn::edge_base),
    };
  }
  return samples;
}

py::array_t<std::uint32_t> read_edge_pointers(files::ShardFiles &files, const py::handle &jobs_arg,
                                              std::size_t layers_stored, std::size_t threads) {
  const JobTable<EdgesColumn> jobs(jobs_arg);
  const std::vector<std::uint64_t> shards = jobs.shards();
  py::array_t<std::uint32_t> pointers(
      {static_cast<py::ssize_t>(shards.size()), static_cast<py::ssize_t>(layers_stored + 1)});
  std::uint32_t *out = pointers.mutable_data();
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    const JobFiles opened = open_files(files, shards);
    graph::read_pointers(sample_edges(jobs, opened), layers_stored, out, threads);
    check_files(opened);
  }
  return pointers;
}

void collate_edges(files::ShardFiles &files, const py::handle &jobs_arg,
                   const py::handle &layers_arg, const py::handle &pointers_arg,
                   const py::handle &edge_index_arg, const py::handle &edge_attr_arg,
                   std::size_t threads) {
  const JobTable<EdgesColumn> jobs(jobs_arg);
  const std::vector<std::uint64_t> layers = unsigned_list(layers_arg, "layers");
  const auto pointers = array_arg<std::uint32_t>(pointers_arg, "pointers", 2);
  auto edge_index = array_arg<std::int64_t>(edge_index_arg, "edge_index", 2, true);
  auto edge_attr = array_arg<float>(edge_attr_arg, "edge_attr", 1, true);
  if (static_cast<std::size_t>(pointers.shape(0)) != jobs.rows() || pointers.shape(1) < 2) {
    throw py::value_error("pointers: needs one row of layers + 1 entries per job");
  }
  if (edge_index.shape(0) != 2 || edge_index.shape(1) != edge_attr.shape(0)) {
    throw py::value_error("edge_index: needs shape [2, E] with the E of edge_attr");
  }
  const std::vector<std::uint64_t> shards = jobs.shards();
  const auto layers_stored = static_cast<std::size_t>(pointers.shape(1) - 1);
  const std::uint32_t *pointer_data = pointers.data();
  std::int64_t *index_data = edge_index.mutable_data();
  float *attr_data = edge_attr.mutable_data();
  const auto edge_count = static_cast<std::uint64_t>(edge_attr.size());
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    const JobFiles opened = open_files(files, shards);
    graph::collate_edges(sample_edges(jobs, opened), layers, layers_stored, pointer_data,
                         index_data, attr_data, edge_count, threads);
    check_files(opened);
  }
}

py::array_t<std::int64_t> count_union_edges(files::ShardFiles &files, const py::handle &jobs_arg,
                                            const py::handle &layers, std::size_t layers_stored,
                                            std::size_t heads, std::size_t threads) {
  const JobTable<HeadsColumn> jobs(jobs_arg);
  const graph::UnionPlan plan{layers_stored, heads, unsigned_list(layers, "layers")};
  const std::vector<std::uint64_t> shards = jobs.shards();
  py::array_t<std::int64_t> counts(static_cast<py::ssize_t>(shards.size()));
  std::int64_t *out = counts.mutable_data();
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    const JobFiles opened = open_files(files, shards);
    graph::count_union_edges(sample_heads(jobs, opened), plan, out, threads);
    check_files(opened);
  }
  return counts;
}

void collate_union(files::ShardFiles &files, const py::handle &jobs_arg, const py::handle &layers,
                   std::size_t layers_stored, std::size_t heads, const py::handle &edge_index_arg,
                   const py::handle &edge_attr_arg, std::size_t threads) {
  const JobTable<HeadsColumn> jobs(jobs_arg);
  const graph::UnionPlan plan{layers_stored, heads, unsigned_list(layers, "layers")};
  auto edge_index = array_arg<std::int64_t>(edge_index_arg, "edge_index", 2, true);
  auto edge_attr = array_arg<float>(edge_attr_arg, "edge_attr", 2, true);
  const auto channels = static_cast<py::ssize_t>(plan.layers.size() * heads);
  if (edge_index.shape(0) != 2 || edge_index.shape(1) != edge_attr.shape(0) ||
      edge_attr.shape(1) != channels) {
    throw py::value_error("edge_index, edge_attr: need shapes [2, E] and [E, layers * heads]");
  }
  const std::vector<std::uint64_t> shards = jobs.shards();
  std::int64_t *index_data = edge_index.mutable_data();
  float *attr_data = edge_attr.mutable_data();
  const auto edge_count = static_cast<std::uint64_t>(edge_attr.shape(0));
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    const JobFiles opened = open_files(files, shards);
    graph::collate_union(sample_heads(jobs, opened), plan, index_data, attr_data, edge_count,
                         threads);
    check_files(opened);
  }
}

} // namespace

void bind_graph(py::module_ &module) {
  module.attr("EDGES_COLUMNS") = column_names<EdgesColumn>();
  module.attr("HEADS_COLUMNS") = column_names<HeadsColumn>();
  module.def("read_edge_pointers", &read_edge_pointers, py::arg("files"), py::arg("jobs"),
             py::kw_only(), py::arg("layers_stored"), py::arg("threads"));
  module.def("collate_edges", &collate_edges, py::arg("files"), py::arg("jobs"), py::arg("layers"),
             py::kw_only(), py::arg("pointers"), py::arg("edge_index"), py::arg("edge_attr"),
             py::arg("threads"));
  module.def("count_union_edges", &count_union_edges, py::arg("files"), py::arg("jobs"),
             py::arg("layers"), py::kw_only(), py::arg("layers_stored"), py::arg("heads"),
             py::arg("threads"));
  module.def("collate_union", &collate_union, py::arg("files"), py::arg("jobs"), py::arg("layers"),
             py::kw_only(), py::arg("layers_stored"), py::arg("heads"), py::arg("edge_index"),
             py::arg("edge_attr"), py::arg("threads"));
}

} // namespace wdsbench::python
