#pragma once

#include "python/buffer_arg.hpp"

#include <climits>
#include <vector>

namespace wdsbench::python {

/// One row a sample, int64 `[B, COUNT]`: a batch's jobs in one argument. `Column` is an enum whose
/// first value is `fd`.
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

  [[nodiscard]] int fd(std::size_t row) const {
    const std::uint64_t value = at(row, Column::fd);
    if (value > INT_MAX) {
      throw py::value_error("jobs: row " + std::to_string(row) + ": not a file descriptor");
    }
    return static_cast<int>(value);
  }

private:
  py::array_t<std::int64_t, py::array::c_style> jobs_;
};

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
