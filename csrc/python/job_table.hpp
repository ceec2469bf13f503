#pragma once

#include "batch/decode.hpp"
#include "files/shard_files.hpp"
#include "python/buffer_arg.hpp"

#include <algorithm>
#include <vector>

namespace wdsbench::python {

/// One row a sample, int64 `[B, COUNT]`: a batch's jobs in one argument. `Column` is an enum whose
/// first value is `shard`.
template <typename Column> class JobTable {
public:
  explicit JobTable(const py::handle &jobs) : jobs_(array_arg<std::int64_t>(jobs, "jobs", 2)) {
    constexpr auto COLUMNS = static_cast<py::ssize_t>(Column::COUNT);
    if (jobs_.shape(1) != COLUMNS) {
      throw py::value_error("jobs: has " + std::to_string(jobs_.shape(1)) + " columns, needs " +
                            std::to_string(COLUMNS));
    }
    const std::int64_t *values = jobs_.data();
    for (py::ssize_t i = 0; i < jobs_.size(); ++i) {
      if (values[i] < 0) {
        throw py::value_error("jobs: row " + std::to_string(i / COLUMNS) + ", column " +
                              std::to_string(i % COLUMNS) + " is negative");
      }
    }
  }

  [[nodiscard]] std::size_t rows() const { return static_cast<std::size_t>(jobs_.shape(0)); }

  [[nodiscard]] std::uint64_t at(std::size_t row, Column column) const {
    constexpr auto COLUMNS = static_cast<std::size_t>(Column::COUNT);
    return static_cast<std::uint64_t>(
        jobs_.data()[row * COLUMNS + static_cast<std::size_t>(column)]);
  }

  /// Returns the shard number of every row.
  [[nodiscard]] std::vector<std::uint64_t> shards() const {
    std::vector<std::uint64_t> numbers(rows());
    for (std::size_t row = 0; row < numbers.size(); ++row) {
      numbers[row] = at(row, Column::shard);
    }
    return numbers;
  }

private:
  py::array_t<std::int64_t, py::array::c_style> jobs_;
};

/// The open files of a batch: of every row, and each once.
struct JobFiles {
  std::vector<const files::ShardFile *> of_row;
  batch::OpenFiles distinct;
};

/// Opens every row's shard; needs no GIL. Throws FormatError with `sample` set.
inline JobFiles open_files(files::ShardFiles &files, const std::vector<std::uint64_t> &shards) {
  JobFiles opened;
  opened.of_row.reserve(shards.size());
  for (std::size_t row = 0; row < shards.size(); ++row) {
    if (row > 0 && shards[row] == shards[row - 1]) {
      opened.of_row.push_back(opened.of_row.back());
      continue;
    }
    try {
      auto file = files.open(shards[row]);
      opened.of_row.push_back(file.get());
      if (std::find(opened.distinct.begin(), opened.distinct.end(), file) ==
          opened.distinct.end()) {
        opened.distinct.push_back(std::move(file));
      }
    } catch (FormatError &error) {
      error.sample = row;
      throw;
    }
  }
  return opened;
}

/// Throws FormatError where a file of the batch changed while it was read.
inline void check_files(const JobFiles &files) {
  batch::check_unchanged(files.distinct, files.of_row.size(),
                         [&files](std::size_t at) { return files.of_row[at]; });
}

/// Returns a one-axis int64 array of non-negative values as a vector.
inline std::vector<std::uint64_t> unsigned_list(const py::handle &values_arg, const char *name) {
  const auto values = array_arg<std::int64_t>(values_arg, name, 1);
  std::vector<std::uint64_t> list(static_cast<std::size_t>(values.size()));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (values.data()[i] < 0) {
      throw py::value_error(std::string(name) + ": entry " + std::to_string(i) + " is negative");
    }
    list[i] = static_cast<std::uint64_t>(values.data()[i]);
  }
  return list;
}

} // namespace wdsbench::python
