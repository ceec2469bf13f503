#include "npy/header.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"

namespace wdsbench::python {

namespace {

py::tuple parse_npy_header(const py::buffer &member, std::uint64_t member_size) {
  const BytesArg bytes(member, "member", false);
  const npy::Header header = npy::parse_header(ByteView(bytes.data(), bytes.size()), member_size);
  py::tuple shape(header.axes);
  for (std::size_t axis = 0; axis < header.axes; ++axis) {
    shape[axis] = header.shape[axis];
  }
  return py::make_tuple(npy::element_name(header.type), shape, header.payload_offset);
}

} // namespace

void bind_npy(py::module_ &module) {
  module.def("parse_npy_header", &parse_npy_header, py::arg("member"), py::arg("member_size"));
}

} // namespace wdsbench::python
