#include "bytes/format_error.hpp"
#include "python/bind.hpp"

#include <pybind11/gil_safe_call_once.h>

namespace wdsbench::python {

namespace py = pybind11;

namespace {

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> format_error_type;

/// Returns a text that may quote bytes of a file, with `\x..` for those that are not UTF-8.
py::str quoting(const std::string &text) {
  auto *decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

void raise_format_error(const FormatError &error) {
  const py::object &type = format_error_type.get_stored();
  const py::str detail = quoting(error.what());
  const py::object value = type(detail);
  value.attr("kind") = kind_name(error.kind);
  value.attr("offset_bytes") = error.offset_bytes;
  value.attr("detail") = detail;
  value.attr("sample") = error.sample == FormatError::NO_SAMPLE
                             ? py::object(py::none())
                             : py::object(py::int_(error.sample));
  value.attr("member") = quoting(error.member);
  PyErr_SetObject(type.ptr(), value.ptr());
}

} // namespace

void bind_errors(py::module_ &module) {
  format_error_type.call_once_and_store_result([&module] {
    return py::object(py::exception<FormatError>(module, "FormatError", PyExc_ValueError));
  });
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(pointer);
      }
    } catch (const FormatError &error) {
      raise_format_error(error);
    }
  });
}

} // namespace wdsbench::python
