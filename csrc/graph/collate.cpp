#include "graph/collate.hpp"

#include <stdexcept>

namespace wdsbench::graph {

void read_pointers(const std::vector<SampleEdges> &samples, std::size_t layers_stored,
                   std::uint32_t *out, std::size_t threads) {
  for_each_sample(
      samples, threads, [&](std::size_t at, const SampleEdges &sample, const char *&member) {
        member = LAYER_NAMES.pointer;
        read_pointer(sample.edges.pointer, layers_stored, out + at * (layers_stored + 1));
      });
}

void collate_edges(const std::vector<SampleEdges> &samples,
                   const std::vector<std::uint64_t> &layers, std::size_t layers_stored,
                   const std::uint32_t *pointers, std::int64_t *edge_index, float *edge_attr,
                   std::uint64_t edge_count, std::size_t threads) {
  for (const std::uint64_t layer : layers) {
    if (layer >= layers_stored) {
      throw std::invalid_argument("layer " + std::to_string(layer) + " is not one of the " +
                                  std::to_string(layers_stored) + " stored");
    }
  }
  for_each_sample(
      samples, threads, [&](std::size_t at, const SampleEdges &sample, const char *&member) {
        const std::uint32_t *row = pointers + at * (layers_stored + 1);
        const StoredEdges stored(sample.edges, LAYER_NAMES, row[layers_stored], member);
        std::uint64_t edge = sample.edge_base;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const std::uint64_t first = row[layers[i]];
          const std::uint64_t count = row[layers[i] + 1] - first;
          if (edge > edge_count || count > edge_count - edge) {
            throw std::invalid_argument("a sample's edges end outside the batch buffer");
          }
          stored.check(first, count, sample.tokens, ListNames{}, layers[i], member);
          stored.shift_indices(first, count,
                               static_cast<std::int64_t>(sample.node_base + i * sample.tokens),
                               edge_index + edge, edge_index + edge_count + edge);
          stored.widen_weights(first, count, edge_attr + edge);
          edge += count;
        }
      });
}

} // namespace wdsbench::graph
