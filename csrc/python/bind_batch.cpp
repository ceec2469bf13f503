#include "batch/decode.hpp"
#include "batch/workers.hpp"
#include "files/bus_guard.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"
#include "python/job_table.hpp"

#include <memory>

namespace wdsbench::python {

namespace {

#define WDSBENCH_ROWS_COLUMNS(X)                                                                   \
  X(shard)                                                                                         \
  X(tensor_offset)                                                                                 \
  X(tensor_size)                                                                                   \
  X(scale_offset)                                                                                  \
  X(scale_size)                                                                                    \
  X(tokens_stored)                                                                                 \
  X(token_first)                                                                                   \
  X(token_count)                                                                                   \
  X(target)                                                                                        \
  X(layer_stride)
WDSBENCH_JOB_COLUMNS(RowsColumn, WDSBENCH_ROWS_COLUMNS)

using RowsJobs = JobTable<RowsColumn>;

std::vector<batch::SampleRows> sample_rows(const RowsJobs &jobs, const JobFiles &files) {
  std::vector<batch::SampleRows> samples(jobs.rows());
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const files::ShardFile *file = files.of_row[b];
    samples[b] = {
        {file, jobs.at(b, RowsColumn::tensor_offset), jobs.at(b, RowsColumn::tensor_size)},
        {file, jobs.at(b, RowsColumn::scale_offset), jobs.at(b, RowsColumn::scale_size)},
        jobs.at(b, RowsColumn::tokens_stored),
        jobs.at(b, RowsColumn::token_first),
        jobs.at(b, RowsColumn::token_count),
        jobs.at(b, RowsColumn::target),
        jobs.at(b, RowsColumn::layer_stride),
    };
  }
  return samples;
}

batch::RowsTarget rows_target(const py::handle &out) {
  if (py::isinstance<py::array_t<std::uint16_t>>(out)) {
    auto raw = array_arg<std::uint16_t>(out, "out", 1, true);
    return {nullptr, reinterpret_cast<std::uint8_t *>(raw.mutable_data()),
            static_cast<std::uint64_t>(raw.size()), sizeof(std::uint16_t)};
  }
  if (py::isinstance<py::array_t<std::uint8_t>>(out)) {
    auto raw = array_arg<std::uint8_t>(out, "out", 1, true);
    return {nullptr, raw.mutable_data(), static_cast<std::uint64_t>(raw.size()), 1};
  }
  auto floats = array_arg<float>(out, "out", 1, true);
  return {floats.mutable_data(), nullptr, static_cast<std::uint64_t>(floats.size()), 0};
}

/// A batch that is being decoded; keeps `out` alive.
class RowsInFlight {
public:
  RowsInFlight(std::shared_ptr<const batch::RowsDecode> decode, py::object out, std::size_t threads)
      : out_(std::move(out)), decode_(std::move(decode)) {
    const py::gil_scoped_release release;
    run_ = std::make_unique<batch::Run>(
        decode_->units(), threads, [decode = decode_](std::size_t unit) { decode->decode(unit); });
  }

  ~RowsInFlight() {
    const py::gil_scoped_release release;
    run_.reset();
  }

  void wait() {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    run_->wait();
    decode_->check_files();
  }

  [[nodiscard]] const batch::Run &run() const { return *run_; }

private:
  py::object out_;
  std::shared_ptr<const batch::RowsDecode> decode_;
  std::unique_ptr<batch::Run> run_;
};

std::shared_ptr<const batch::RowsDecode> make_decode(files::ShardFiles &files, const RowsJobs &jobs,
                                                     batch::RowsPlan plan,
                                                     const batch::RowsTarget &target,
                                                     std::size_t threads) {
  const std::vector<std::uint64_t> shards = jobs.shards();
  const py::gil_scoped_release release;
  JobFiles opened = open_files(files, shards);
  auto samples = sample_rows(jobs, opened);
  return std::make_shared<const batch::RowsDecode>(std::move(samples), std::move(opened.distinct),
                                                   std::move(plan), target, threads);
}

std::unique_ptr<RowsInFlight> start_rows(files::ShardFiles &files, const py::handle &jobs,
                                         const py::handle &layers, std::uint64_t layers_stored,
                                         std::uint64_t features, std::uint64_t token_padded,
                                         const py::object &out, std::size_t threads, bool images) {
  batch::RowsPlan plan{layers_stored, features, unsigned_list(layers, "layers"), token_padded,
                       images};
  auto decode = make_decode(files, RowsJobs(jobs), std::move(plan), rows_target(out), threads);
  return std::make_unique<RowsInFlight>(std::move(decode), out, threads);
}

void decode_rows(files::ShardFiles &files, const py::handle &jobs, const py::handle &layers,
                 std::uint64_t layers_stored, std::uint64_t features, std::uint64_t token_padded,
                 const py::handle &out, std::size_t threads, bool images) {
  batch::RowsPlan plan{layers_stored, features, unsigned_list(layers, "layers"), token_padded,
                       images};
  const auto decode =
      make_decode(files, RowsJobs(jobs), std::move(plan), rows_target(out), threads);
  const py::gil_scoped_release release;
  files::unblock_bus_errors();
  batch::run_parallel(decode->units(), threads,
                      [&decode](std::size_t unit) { decode->decode(unit); });
  decode->check_files();
}

py::array_t<float> read_scales(files::ShardFiles &files, const py::handle &jobs_arg,
                               const py::handle &layers, std::uint64_t layers_stored, bool images) {
  const RowsJobs jobs(jobs_arg);
  const std::vector<std::uint64_t> shards = jobs.shards();
  const batch::RowsPlan plan{layers_stored, 0, unsigned_list(layers, "layers"), 0, images};
  std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(shards.size()),
                                 static_cast<py::ssize_t>(plan.layers.size())};
  if (images) {
    shape.push_back(2);
  }
  py::array_t<float> scales(shape);
  float *out = scales.mutable_data();
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    files::arm_bus_guard();
    const JobFiles opened = open_files(files, shards);
    batch::read_scales(sample_rows(jobs, opened), plan, out);
    check_files(opened);
  }
  return scales;
}

} // namespace

void bind_batch(py::module_ &module) {
  module.attr("ROWS_COLUMNS") = column_names<RowsColumn>();
  py::class_<RowsInFlight>(module, "RowsInFlight")
      .def("wait", &RowsInFlight::wait)
      .def_property_readonly("busy_seconds",
                             [](const RowsInFlight &rows) { return rows.run().busy_seconds(); })
      .def_property_readonly("done_at",
                             [](const RowsInFlight &rows) { return rows.run().done_at(); });
  module.def("start_rows", &start_rows, py::arg("files"), py::arg("jobs"), py::arg("layers"),
             py::kw_only(), py::arg("layers_stored"), py::arg("features"), py::arg("token_padded"),
             py::arg("out"), py::arg("threads"), py::arg("images") = false);
  module.def("decode_rows", &decode_rows, py::arg("files"), py::arg("jobs"), py::arg("layers"),
             py::kw_only(), py::arg("layers_stored"), py::arg("features"), py::arg("token_padded"),
             py::arg("out"), py::arg("threads"), py::arg("images") = false);
  module.def("read_scales", &read_scales, py::arg("files"), py::arg("jobs"), py::arg("layers"),
             py::kw_only(), py::arg("layers_stored"), py::arg("images") = false);
}

} // namespace wdsbench::python
