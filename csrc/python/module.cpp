#include "python/bind.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Decoding of wdsbench shards: half kernels, npy headers, batches, graphs. "
                 "Signatures: _core.pyi.";
  wdsbench::python::bind_errors(module);
  wdsbench::python::bind_half(module);
  wdsbench::python::bind_npy(module);
  wdsbench::python::bind_tar(module);
  wdsbench::python::bind_files(module);
  wdsbench::python::bind_batch(module);
  wdsbench::python::bind_attention(module);
  wdsbench::python::bind_edges(module);
  wdsbench::python::bind_graph(module);
}
