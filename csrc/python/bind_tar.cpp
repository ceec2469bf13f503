#include "tar/index.hpp"

#include "python/bind.hpp"

#include <pybind11/numpy.h>

#include <cerrno>
#include <cstring>
#include <sys/stat.h>

namespace wdsbench::python {

namespace py = pybind11;

namespace {

/// Names are bytes in a tar; those that are not UTF-8 are decoded as os.fsdecode does.
py::object name_text(const std::string &name) {
  PyObject *text =
      PyUnicode_DecodeUTF8(name.data(), static_cast<py::ssize_t>(name.size()), "surrogateescape");
  if (text == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(text);
}

py::tuple list_tar_members(int fd) {
  std::vector<tar::Member> members;
  {
    const py::gil_scoped_release release;
    struct stat status = {};
    if (::fstat(fd, &status) != 0) {
      throw FormatError(FormatKind::io, 0, std::string("cannot read: ") + std::strerror(errno));
    }
    members = tar::list_members(fd, static_cast<std::uint64_t>(status.st_size));
  }
  const auto count = static_cast<py::ssize_t>(members.size());
  py::list names(count);
  py::array_t<std::int64_t> offsets(count);
  py::array_t<std::int64_t> sizes(count);
  for (std::size_t i = 0; i < members.size(); ++i) {
    names[i] = name_text(members[i].name);
    offsets.mutable_data()[i] = static_cast<std::int64_t>(members[i].offset_bytes);
    sizes.mutable_data()[i] = static_cast<std::int64_t>(members[i].size_bytes);
  }
  return py::make_tuple(names, offsets, sizes);
}

} // namespace

void bind_tar(py::module_ &module) {
  module.def("list_tar_members", &list_tar_members, py::arg("fd"));
}

} // namespace wdsbench::python
