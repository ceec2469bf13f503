#include "bytes/format_error.hpp"
#include "python/bind.hpp"

#include <pybind11/gil_safe_call_once.h>

namespace wdsbench::python {

namespace py = pybind11;

namespace {

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> format_error_type;

void raise_format_error(const FormatError &error) {
  const py::object &type = format_error_type.get_stored();
  const py::object value = type(error.what());
  value.attr("kind") = kind_name(error.kind);
  value.attr("offset_bytes") = error.offset_bytes;
  value.attr("detail") = error.what();
  value.attr("sample") = error.sample == FormatError::NO_SAMPLE
                             ? py::object(py::none())
                             : py::object(py::int_(error.sample));
  value.attr("member") = error.member;
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
