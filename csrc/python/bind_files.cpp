#include "files/bus_guard.hpp"
#include "files/read_ahead.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"

#include <pybind11/stl.h>

namespace wdsbench::python {

namespace {

files::Access access_named(const std::string &name) {
  if (name == "map") {
    return files::Access::map;
  }
  if (name == "sparse") {
    return files::Access::sparse;
  }
  if (name == "pread") {
    return files::Access::pread;
  }
  throw py::value_error("access: '" + name + "' is not one of 'map', 'sparse', 'pread'");
}

std::shared_ptr<files::ShardFiles> make_files(const std::vector<py::bytes> &paths,
                                              std::vector<std::uint64_t> sizes, std::size_t limit,
                                              const std::string &access) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const py::bytes &path : paths) {
    names.emplace_back(path);
  }
  return std::make_shared<files::ShardFiles>(std::move(names), std::move(sizes), limit,
                                             access_named(access));
}

py::bytes read(files::ShardFiles &files, std::size_t shard, std::uint64_t offset,
               std::size_t size) {
  std::shared_ptr<const files::ShardFile> file;
  {
    const py::gil_scoped_release release;
    file = files.open(shard);
    file->require(offset, size); // before memory is asked for
  }
  py::bytes bytes(nullptr, size);
  char *out = PyBytes_AS_STRING(bytes.ptr());
  {
    const py::gil_scoped_release release;
    files::unblock_bus_errors();
    files::arm_bus_guard();
    file->read(offset, size, out);
    file->check_unchanged();
  }
  return bytes;
}

} // namespace

void bind_files(py::module_ &module) {
  py::class_<files::ShardFiles, std::shared_ptr<files::ShardFiles>>(module, "ShardFiles")
      .def(py::init(&make_files), py::arg("paths"), py::arg("sizes"), py::kw_only(),
           py::arg("limit"), py::arg("access") = "map")
      .def("read", &read, py::arg("shard"), py::arg("offset"), py::arg("size"))
      .def_property_readonly("open_count", &files::ShardFiles::open_count);
  py::class_<files::ReadAhead>(module, "ReadAhead")
      .def(py::init<std::shared_ptr<files::ShardFiles>>(), py::arg("files"))
      .def("request", &files::ReadAhead::request, py::arg("shard"), py::arg("offset"),
           py::arg("size"))
      .def("clear", &files::ReadAhead::clear);
}

} // namespace wdsbench::python
