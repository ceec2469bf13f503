#pragma once

#include <pybind11/pybind11.h>

/// One function a room; module.cpp calls them all.
namespace wdsbench::python {

void bind_errors(pybind11::module_ &module);
void bind_half(pybind11::module_ &module);
void bind_npy(pybind11::module_ &module);
void bind_tar(pybind11::module_ &module);
void bind_files(pybind11::module_ &module);
void bind_batch(pybind11::module_ &module);
void bind_attention(pybind11::module_ &module);
void bind_edges(pybind11::module_ &module);
void bind_graph(pybind11::module_ &module);

} // namespace wdsbench::python
