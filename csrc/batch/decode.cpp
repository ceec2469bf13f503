#include "batch/decode.hpp"

#include "batch/widen.hpp"
#include "batch/workers.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace wdsbench::batch {

namespace {

/// Bytes fetched and converted at a time: what is read stays in the second-level cache until it is
/// widened.
constexpr std::size_t SCRATCH_BYTES = std::size_t{256} * 1024;

/// Units of work for each thread, so that a large sample at the end does not leave the others idle.
constexpr std::size_t UNITS_PER_THREAD = 4;

void check_bounds(const std::vector<SampleRows> &samples, const RowsPlan &plan,
                  std::uint64_t out_count) {
  constexpr std::uint64_t LIMIT = std::uint64_t{1} << 62;
  for (const std::uint64_t layer : plan.layers) {
    if (layer >= plan.layers_stored) {
      throw std::invalid_argument("layer " + std::to_string(layer) + " is not one of the " +
                                  std::to_string(plan.layers_stored) + " stored");
    }
  }
  if (plan.layers.empty()) {
    return;
  }
  for (const SampleRows &sample : samples) {
    const std::uint64_t rows = std::max(sample.token_count, plan.token_padded);
    if (sample.token_first > sample.tokens_stored ||
        sample.token_count > sample.tokens_stored - sample.token_first) {
      throw std::invalid_argument("tokens [" + std::to_string(sample.token_first) + ", " +
                                  std::to_string(sample.token_first + sample.token_count) +
                                  ") are not among the " + std::to_string(sample.tokens_stored) +
                                  " stored");
    }
    // The sum cannot wrap: each product is below 2^62 / 2 where the buffer is.
    const auto last_layer = static_cast<std::uint64_t>(plan.layers.size() - 1);
    const bool wraps = checked_product(last_layer, sample.layer_stride, 0) > LIMIT ||
                       checked_product(rows, plan.features, 0) > LIMIT || sample.target > LIMIT;
    if (wraps ||
        sample.target + last_layer * sample.layer_stride + rows * plan.features > out_count) {
      throw std::invalid_argument("a sample ends outside the batch buffer");
    }
  }
}

void check_member(const npy::Header &header, const SampleRows &sample, const RowsPlan &plan,
                  std::uint64_t offset_bytes) {
  if (header.axes != 3 || header.shape[0] != plan.layers_stored ||
      header.shape[1] != sample.tokens_stored || header.shape[2] != plan.features) {
    throw FormatError(FormatKind::shape, offset_bytes,
                      "shape " + header.shape_text() + ", expected (" +
                          std::to_string(plan.layers_stored) + ", " +
                          std::to_string(sample.tokens_stored) + ", " +
                          std::to_string(plan.features) + ")");
  }
}

std::vector<float> read_scale(const SampleRows &sample, const RowsPlan &plan) {
  const MemberReader reader(sample.scale);
  const npy::Header &header = reader.header();
  if (header.type != npy::ElementType::f32) {
    throw FormatError(FormatKind::dtype, sample.scale.offset_bytes,
                      std::string("a scale is '<f4', this is '") + npy::element_name(header.type) +
                          "'");
  }
  if (header.axes != 1 || header.shape[0] != plan.layers_stored) {
    throw FormatError(FormatKind::shape, sample.scale.offset_bytes,
                      "shape " + header.shape_text() + ", expected (" +
                          std::to_string(plan.layers_stored) + ",)");
  }
  std::vector<float> scale(plan.layers_stored);
  reader.read(0, scale.size() * sizeof(float), scale.data());
  return scale;
}

/// Decodes layers [first, last) of plan.layers for one sample.
class LayerRange {
public:
  LayerRange(const SampleRows &sample, const RowsPlan &plan, float *out)
      : sample_(sample), plan_(plan), out_(out), reader_(sample.member),
        type_(reader_.header().type) {
    check_member(reader_.header(), sample, plan, sample.member.offset_bytes);
    if (plan.bf16) {
      if (type_ != npy::ElementType::u16) {
        throw FormatError(FormatKind::dtype, sample.member.offset_bytes,
                          std::string("the index says bf16 (stored '<u2'), the member is '") +
                              npy::element_name(type_) + "'");
      }
      type_ = npy::ElementType::bf16;
    }
  }

  void decode(std::size_t first, std::size_t last, const std::vector<float> &scale) {
    const std::uint64_t row_elements = sample_.token_count * plan_.features;
    // Where whole layers are wanted and lie beside each other on both sides, they are one run of
    // bytes.
    const bool whole =
        sample_.token_count == sample_.tokens_stored && sample_.layer_stride == row_elements;
    for (std::size_t i = first; i < last;) {
      std::size_t run = 1;
      while (whole && i + run < last && plan_.layers[i + run] == plan_.layers[i] + run) {
        ++run;
      }
      const std::uint64_t start =
          (plan_.layers[i] * sample_.tokens_stored + sample_.token_first) * plan_.features;
      float *target = out_ + sample_.target + i * sample_.layer_stride;
      copy(start, run * row_elements, target);
      for (std::size_t layer = i; !scale.empty() && layer < i + run; ++layer) {
        multiply(target + (layer - i) * row_elements, row_elements, scale[plan_.layers[layer]]);
      }
      i += run;
    }
    pad(first, last, row_elements);
  }

private:
  void copy(std::uint64_t start, std::uint64_t count, float *target) {
    const std::size_t width = npy::element_size(type_);
    const std::size_t piece = SCRATCH_BYTES / width;
    for (std::uint64_t at = 0; at < count; at += piece) {
      const auto elements = static_cast<std::size_t>(std::min<std::uint64_t>(piece, count - at));
      widen(type_, reader_.view((start + at) * width, elements * width, scratch()), target + at,
            elements);
    }
  }

  static void multiply(float *values, std::uint64_t count, float factor) {
    if (factor != 1.0F) {
      for (std::uint64_t k = 0; k < count; ++k) {
        values[k] *= factor;
      }
    }
  }

  void pad(std::size_t first, std::size_t last, std::uint64_t row_elements) {
    const std::uint64_t padded = plan_.token_padded * plan_.features;
    for (std::size_t i = first; padded > row_elements && i < last; ++i) {
      float *target = out_ + sample_.target + i * sample_.layer_stride;
      std::fill(target + row_elements, target + padded, 0.0F);
    }
  }

  /// One scratch a thread, kept between batches.
  static std::vector<std::uint8_t> &scratch() {
    thread_local std::vector<std::uint8_t> bytes(SCRATCH_BYTES);
    return bytes;
  }

  const SampleRows &sample_;
  const RowsPlan &plan_;
  float *out_;
  MemberReader reader_;
  npy::ElementType type_;
};

} // namespace

void decode_rows(const std::vector<SampleRows> &samples, const RowsPlan &plan, float *out,
                 std::uint64_t out_count, std::size_t threads) {
  check_bounds(samples, plan, out_count);
  const std::size_t layers = plan.layers.size();
  if (samples.empty() || layers == 0) {
    return;
  }
  const std::size_t wanted_units = threads > 1 ? threads * UNITS_PER_THREAD : 1;
  const std::size_t parts =
      std::clamp<std::size_t>((wanted_units + samples.size() - 1) / samples.size(), 1, layers);
  run_parallel(samples.size() * parts, threads, [&](std::size_t unit) {
    const std::size_t at = unit / parts;
    const std::size_t part = unit % parts;
    const SampleRows &sample = samples[at];
    const char *member = "hidden";
    try {
      LayerRange range(sample, plan, out);
      std::vector<float> scale;
      if (sample.scale.size_bytes != 0) {
        member = "hidden_scale";
        scale = read_scale(sample, plan);
        member = "hidden";
      }
      range.decode(layers * part / parts, layers * (part + 1) / parts, scale);
    } catch (FormatError &error) {
      error.sample = at;
      error.member = member;
      throw;
    }
  });
}

} // namespace wdsbench::batch
