#include "batch/decode.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"
#include "python/job_table.hpp"

namespace wdsbench::python {

namespace {

/// Columns of a decode job; wdsbench/_core.pyi names them for Python.
enum class RowsColumn : std::uint8_t {
  fd,
  offset,
  size,
  scale_offset,
  scale_size,
  tokens_stored,
  token_first,
  token_count,
  target,
  layer_stride,
  COUNT
};

void decode_rows(const py::handle &jobs_arg, const py::handle &layers_arg,
                 std::uint64_t layers_stored, std::uint64_t features, std::uint64_t token_padded,
                 bool bf16, const py::handle &out_arg, std::size_t threads) {
  const JobTable<RowsColumn> jobs(jobs_arg);
  auto out = array_arg<float>(out_arg, "out", 1, true);
  batch::RowsPlan plan{layers_stored, features, unsigned_list(layers_arg, "layers"), token_padded,
                       bf16};

  std::vector<batch::SampleRows> samples(jobs.rows());
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const int fd = jobs.fd(b);
    samples[b] = {
        {fd, jobs.at(b, RowsColumn::offset), jobs.at(b, RowsColumn::size)},
        {fd, jobs.at(b, RowsColumn::scale_offset), jobs.at(b, RowsColumn::scale_size)},
        jobs.at(b, RowsColumn::tokens_stored),
        jobs.at(b, RowsColumn::token_first),
        jobs.at(b, RowsColumn::token_count),
        jobs.at(b, RowsColumn::target),
        jobs.at(b, RowsColumn::layer_stride),
    };
  }
  float *out_data = out.mutable_data();
  const auto out_count = static_cast<std::uint64_t>(out.size());
  {
    const py::gil_scoped_release release;
    batch::decode_rows(samples, plan, out_data, out_count, threads);
  }
}

} // namespace

void bind_batch(py::module_ &module) {
  module.def("decode_rows", &decode_rows, py::arg("jobs"), py::arg("layers"), py::kw_only(),
             py::arg("layers_stored"), py::arg("features"), py::arg("token_padded"),
             py::arg("bf16"), py::arg("out"), py::arg("threads"));
}

} // namespace wdsbench::python
