#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>

/// Arguments that are memory: the requirements of a binding, and the error if they are not met.
namespace wdsbench::python {

namespace py = pybind11;

/// Bytes of any C-contiguous buffer, with no demand on element type or alignment.
class BytesArg {
public:
  BytesArg(const py::buffer &buffer, const char *name, bool writable)
      : info_(buffer.request(writable)) {
    py::ssize_t expected = info_.itemsize;
    for (py::ssize_t axis = info_.ndim; axis-- > 0;) {
      if (info_.shape[static_cast<std::size_t>(axis)] > 1 &&
          info_.strides[static_cast<std::size_t>(axis)] != expected) {
        throw py::value_error(std::string(name) + ": must be C-contiguous");
      }
      expected *= info_.shape[static_cast<std::size_t>(axis)];
    }
  }

  [[nodiscard]] std::uint8_t *data() const { return static_cast<std::uint8_t *>(info_.ptr); }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(info_.size * info_.itemsize);
  }

private:
  py::buffer_info info_;
};

/// Returns `array` if it is a C-contiguous `Element` array of `axes` axes; never converts or
/// copies.
template <typename Element>
py::array_t<Element, py::array::c_style> array_arg(const py::handle &array, const char *name,
                                                   py::ssize_t axes, bool writable = false) {
  using Array = py::array_t<Element, py::array::c_style>;
  if (!Array::check_(array)) {
    throw py::type_error(std::string(name) + ": must be a C-contiguous NumPy array of " +
                         py::str(py::dtype::of<Element>()).cast<std::string>());
  }
  auto checked = py::reinterpret_borrow<Array>(array);
  if (checked.ndim() != axes) {
    throw py::value_error(std::string(name) + ": has " + std::to_string(checked.ndim()) +
                          " axes, needs " + std::to_string(axes));
  }
  if (writable && !checked.writeable()) {
    throw py::value_error(std::string(name) + ": is read-only");
  }
  return checked;
}

} // namespace wdsbench::python
