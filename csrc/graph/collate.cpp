#include "graph/collate.hpp"

#include "batch/decode.hpp"
#include "batch/widen.hpp"
#include "batch/workers.hpp"
#include "files/bus_guard.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace wdsbench::graph {

namespace {

using batch::MemberReader;
using npy::ElementType;

void require_shape(bool right, const MemberReader &reader, const std::string &wanted) {
  if (!right) {
    throw FormatError(FormatKind::shape, reader.payload_offset(0),
                      "shape " + reader.header().shape_text() + ", expected " + wanted);
  }
}

void require_type(bool right, const MemberReader &reader, const char *wanted) {
  if (!right) {
    throw FormatError(FormatKind::dtype, reader.payload_offset(0),
                      std::string("'") + npy::element_name(reader.header().type) + "' is not " +
                          wanted);
  }
}

/// Runs `work` for every sample and names the sample and member in what it throws.
template <typename Work>
void for_each_sample(const std::vector<SampleEdges> &samples, std::size_t threads,
                     const Work &work) {
  batch::run_parallel(samples.size(), threads, [&](std::size_t at) {
    const char *member = "";
    files::arm_bus_guard();
    try {
      work(at, samples[at], member);
    } catch (FormatError &error) {
      batch::throw_located(error, *samples[at].index.file, at, member);
    }
  });
}

std::uint64_t load_index(const std::uint8_t *bytes, std::size_t width, std::uint64_t at) {
  if (width == 1) {
    return bytes[at];
  }
  if (width == 2) {
    std::uint16_t value;
    std::memcpy(&value, bytes + 2 * at, sizeof value);
    return value;
  }
  std::uint32_t value;
  std::memcpy(&value, bytes + 4 * at, sizeof value);
  return value;
}

/// Returns the first `count` payload bytes, copied into `scratch`, which grows as needed.
const std::uint8_t *copied(const MemberReader &reader, std::size_t count,
                           std::vector<std::uint8_t> &scratch) {
  if (scratch.size() < count) {
    scratch.resize(count);
  }
  reader.read(0, count, scratch.data());
  return scratch.data();
}

} // namespace

void read_pointers(const std::vector<SampleEdges> &samples, std::size_t layers_stored,
                   std::uint32_t *out, std::size_t threads) {
  for_each_sample(
      samples, threads, [&](std::size_t at, const SampleEdges &sample, const char *&member) {
        member = "edges_ptr";
        const MemberReader reader(sample.pointer);
        const npy::Header &header = reader.header();
        require_type(header.type == ElementType::u32, reader, "'<u4'");
        require_shape(header.axes == 1 && header.shape[0] == layers_stored + 1, reader,
                      "(" + std::to_string(layers_stored + 1) + ",)");
        std::uint32_t *row = out + at * (layers_stored + 1);
        reader.read(0, (layers_stored + 1) * sizeof(std::uint32_t), row);
        for (std::size_t layer = 0; layer <= layers_stored; ++layer) {
          if (layer == 0 ? row[0] != 0 : row[layer] < row[layer - 1]) {
            throw FormatError(
                FormatKind::value, reader.payload_offset(layer * sizeof(std::uint32_t)),
                "pointer " + std::to_string(layer) + " is " + std::to_string(row[layer]) +
                    "; pointers start at 0 and never fall");
          }
        }
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
        const std::uint64_t stored = row[layers_stored];

        member = "edges_index";
        const MemberReader index(sample.index);
        const ElementType type = index.header().type;
        require_type(type == ElementType::u8 || type == ElementType::u16 ||
                         type == ElementType::u32,
                     index, "an unsigned type of 1, 2 or 4 bytes");
        require_shape(index.header().axes == 2 && index.header().shape[0] == 2 &&
                          index.header().shape[1] == stored,
                      index, "(2, " + std::to_string(stored) + ") as the pointer says");
        member = "edges_weight";
        const MemberReader weight(sample.weight);
        require_type(weight.header().type == ElementType::f16, weight, "'<f2'");
        require_shape(weight.header().axes == 1 && weight.header().shape[0] == stored, weight,
                      "(" + std::to_string(stored) + ",) as the pointer says");

        thread_local std::vector<std::uint8_t> index_scratch;
        thread_local std::vector<std::uint8_t> weight_scratch;
        const std::size_t width = npy::element_size(type);
        member = "edges_index";
        const std::uint8_t *pairs = copied(index, 2 * stored * width, index_scratch);
        member = "edges_weight";
        const std::uint8_t *weights =
            copied(weight, stored * sizeof(std::uint16_t), weight_scratch);

        std::uint64_t edge = sample.edge_base;
        for (std::size_t i = 0; i < layers.size(); ++i) {
          const std::uint64_t first = row[layers[i]];
          const std::uint64_t count = row[layers[i] + 1] - first;
          if (edge > edge_count || count > edge_count - edge) {
            throw std::invalid_argument("a sample's edges end outside the batch buffer");
          }
          member = "edges_weight";
          batch::widen(ElementType::f16, weights + first * sizeof(std::uint16_t), edge_attr + edge,
                       count, batch::Stores::cached);
          const auto shift = static_cast<std::int64_t>(sample.node_base + i * sample.tokens);
          for (std::uint64_t k = 0; k < count; ++k) {
            const std::uint64_t source = load_index(pairs, width, first + k);
            const std::uint64_t target = load_index(pairs, width, stored + first + k);
            if (target >= sample.tokens || source >= target) {
              member = "edges_index";
              throw FormatError(FormatKind::value, index.payload_offset((first + k) * width),
                                "layer " + std::to_string(layers[i]) + ": edge " +
                                    std::to_string(source) + " -> " + std::to_string(target) +
                                    " among " + std::to_string(sample.tokens) +
                                    " tokens; an edge runs from a smaller to a larger index");
            }
            if (!std::isfinite(edge_attr[edge + k])) {
              throw FormatError(
                  FormatKind::value, weight.payload_offset((first + k) * sizeof(std::uint16_t)),
                  "layer " + std::to_string(layers[i]) + ": the weight of edge " +
                      std::to_string(source) + " -> " + std::to_string(target) + " is not finite");
            }
            edge_index[edge + k] = static_cast<std::int64_t>(source) + shift;
            edge_index[edge_count + edge + k] = static_cast<std::int64_t>(target) + shift;
          }
          edge += count;
        }
      });
}

} // namespace wdsbench::graph
