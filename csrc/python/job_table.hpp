#pragma once

#include "batch/decode.hpp"
#include "files/shard_files.hpp"
#include "python/buffer_arg.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#define WDSBENCH_ENUMERATOR(name) name,
#define WDSBENCH_STRING(name) #name,
/// Defines the enum `Column` and its names from one list, `LIST(X)`: X(first) X(second) ...
#define WDSBENCH_JOB_COLUMNS(Column, LIST)                                                         \
  enum class Column : std::uint8_t { LIST(WDSBENCH_ENUMERATOR) COUNT };                            \
  constexpr std::array<const char *, static_cast<std::size_t>(Column::COUNT)> job_columns(         \
      Column /*type*/) {                                                                           \
    return {LIST(WDSBENCH_STRING)};                                                                \
  }

namespace wdsbench::python {

/// Returns the names of a table's columns, which Python fills by name.
template <typename Column> py::tuple column_names() {
  constexpr auto NAMES = job_columns(Column::COUNT);
  py::tuple names(NAMES.size());
  for (std::size_t i = 0; i < NAMES.size(); ++i) {
    names[i] = py::str(NAMES[i]);
  }
  return names;
}

/// The jobs of a batch in one argument: int64 `[B, COUNT]`, a row per sample. `Column` is an enum
/// made by WDSBENCH_JOB_COLUMNS with a column `shard`.
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
        throw py::value_error("jobs: row " + std::to_string(i / COLUMNS) + ": " +
                              job_columns(Column::COUNT)[static_cast<std::size_t>(i % COLUMNS)] +
                              " is negative");
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

/// The open files of a batch: one entry per row, and each file once.
struct JobFiles {
  std::vector<const files::ShardFile *> of_row;
  batch::OpenFiles distinct;
};

/// Opens the shard of every row; needs no GIL. Throws FormatError with `sample` set.
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

/// Throws FormatError if a file of the batch changed while it was read.
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
