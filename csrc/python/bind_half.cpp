#include "half/half.hpp"
#include "python/bind.hpp"
#include "python/buffer_arg.hpp"

#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace wdsbench::python {

namespace {

std::vector<std::pair<std::string, bool>> half_kernels() {
  std::vector<std::pair<std::string, bool>> names;
  for (const half::KernelEntry &entry : half::kernels()) {
    names.emplace_back(entry.name, entry.supported());
  }
  return names;
}

const half::KernelEntry &kernel_named(const std::optional<std::string> &name) {
  if (!name) {
    return half::chosen_kernel();
  }
  for (const half::KernelEntry &entry : half::kernels()) {
    if (*name == entry.name) {
      if (!entry.supported()) {
        throw py::value_error("kernel '" + *name + "': this processor does not have it");
      }
      return entry;
    }
  }
  throw py::value_error("kernel '" + *name + "' is unknown; half_kernels() lists them");
}

void widen_half(const py::buffer &source, const py::buffer &target,
                const std::optional<std::string> &kernel, bool stream) {
  const BytesArg in(source, "source", false);
  const BytesArg out(target, "target", true);
  if (in.size() % sizeof(std::uint16_t) != 0 || out.size() != 2 * in.size()) {
    throw py::value_error("target: has " + std::to_string(out.size()) + " bytes, " +
                          std::to_string(in.size()) + " bytes of float16 need " +
                          std::to_string(2 * in.size()));
  }
  const half::KernelEntry &entry = kernel_named(kernel);
  const std::uint8_t *in_bytes = in.data();
  std::uint8_t *out_bytes = out.data();
  const std::size_t count = in.size() / sizeof(std::uint16_t);
  {
    const py::gil_scoped_release release;
    (stream ? entry.stream : entry.widen)(in_bytes, out_bytes, count);
  }
}

void narrow_float(const py::buffer &source, const py::buffer &target) {
  const BytesArg in(source, "source", false);
  const BytesArg out(target, "target", true);
  if (in.size() % sizeof(float) != 0 || in.size() != 2 * out.size()) {
    throw py::value_error("target: has " + std::to_string(out.size()) + " bytes, " +
                          std::to_string(in.size()) + " bytes of float32 need " +
                          std::to_string(in.size() / 2));
  }
  const std::uint8_t *in_bytes = in.data();
  std::uint8_t *out_bytes = out.data();
  const std::size_t count = in.size() / sizeof(float);
  {
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, in_bytes + sizeof(float) * i, sizeof value);
      const std::uint16_t bits = half::narrow_one(value);
      std::memcpy(out_bytes + sizeof bits * i, &bits, sizeof bits);
    }
  }
}

} // namespace

void bind_half(py::module_ &module) {
  module.def("half_kernels", &half_kernels);
  module.def("half_kernel", [] { return half::chosen_kernel().name; });
  module.def("widen_half", &widen_half, py::arg("source"), py::arg("target"), py::kw_only(),
             py::arg("kernel") = py::none(), py::arg("stream") = false);
  module.def("narrow_float", &narrow_float, py::arg("source"), py::arg("target"));
}

} // namespace wdsbench::python
