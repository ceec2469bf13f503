#include "batch/decode.hpp"

#include "files/bus_guard.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace wdsbench::batch {

namespace {

/// Units of work for each thread, so that a large sample at the end does not leave other threads
/// idle.
constexpr std::size_t UNITS_PER_THREAD = 4;

void check_layers(const RowsPlan &plan) {
  for (const std::uint64_t layer : plan.layers) {
    if (layer >= plan.layers_stored) {
      throw std::invalid_argument("layer " + std::to_string(layer) + " is not one of the " +
                                  std::to_string(plan.layers_stored) + " stored");
    }
  }
}

void check_bounds(const std::vector<SampleRows> &samples, const RowsPlan &plan,
                  std::uint64_t out_count) {
  constexpr std::uint64_t LIMIT = std::uint64_t{1} << 62;
  check_layers(plan);
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

const char *tensor_name(const RowsPlan &plan) { return plan.images ? "image" : "hidden"; }

const char *scale_name(const RowsPlan &plan) {
  return plan.images ? "image_range" : "hidden_scale";
}

/// Values of `scale` per layer.
std::size_t scale_width(const RowsPlan &plan) { return plan.images ? 2 : 1; }

std::vector<float> read_scale(const SampleRows &sample, const RowsPlan &plan) {
  const MemberReader reader(sample.scale);
  const npy::Header &header = reader.header();
  if (header.type != npy::ElementType::f32) {
    throw FormatError(FormatKind::dtype, sample.scale.offset_bytes,
                      std::string("a scale is '<f4', this is '") + npy::element_name(header.type) +
                          "'");
  }
  const std::size_t width = scale_width(plan);
  if (header.axes != width || header.shape[0] != plan.layers_stored ||
      (plan.images && header.shape[1] != width)) {
    throw FormatError(FormatKind::shape, sample.scale.offset_bytes,
                      "shape " + header.shape_text() + ", expected (" +
                          std::to_string(plan.layers_stored) + (plan.images ? ", 2)" : ",)"));
  }
  std::vector<float> scale(plan.layers_stored * width);
  reader.read(0, scale.size() * sizeof(float), scale.data());
  return scale;
}

/// Decodes layers [first, last) of plan.layers for one sample.
class LayerRange {
public:
  LayerRange(const SampleRows &sample, const RowsPlan &plan, const RowsTarget &target,
             Stores stores)
      : sample_(sample), plan_(plan), target_(target), stores_(stores), reader_(sample.member),
        type_(reader_.header().type) {
    check_member(reader_.header(), sample, plan, sample.member.offset_bytes);
    const bool small = type_ == npy::ElementType::u8 || type_ == npy::ElementType::u16;
    const bool widens_later = type_ == npy::ElementType::f16 || (plan.images && small);
    if (target.floats == nullptr &&
        !(widens_later && npy::element_size(type_) == target.raw_bytes)) {
      throw FormatError(FormatKind::dtype, sample.member.offset_bytes,
                        std::string("'") + npy::element_name(type_) + "' is not " +
                            (target.raw_bytes == 1 ? "uint8" : "float16") +
                            "; let the host widen it");
    }
  }

  void decode(std::size_t first, std::size_t last, const std::vector<float> &scale) {
    const std::uint64_t row_elements = sample_.token_count * plan_.features;
    // Whole layers that are adjacent in both the member and the batch are one run of bytes.
    const bool whole =
        sample_.token_count == sample_.tokens_stored && sample_.layer_stride == row_elements;
    const bool ranges = plan_.images && target_.floats != nullptr;
    for (std::size_t i = first; i < last;) {
      std::size_t run = 1;
      while (whole && !ranges && i + run < last && plan_.layers[i + run] == plan_.layers[i] + run) {
        ++run;
      }
      const std::uint64_t start =
          (plan_.layers[i] * sample_.tokens_stored + sample_.token_first) * plan_.features;
      const std::uint64_t target = sample_.target + i * sample_.layer_stride;
      if (target_.floats == nullptr) {
        copy(start, run * row_elements, target_.raw + target * target_.raw_bytes);
      } else if (ranges) {
        const float *range = &scale[2 * plan_.layers[i]];
        normalise(start, row_elements, target_.floats + target, {range[0], range[1]});
      } else {
        convert(start, run * row_elements, target_.floats + target);
        for (std::size_t layer = i; !scale.empty() && layer < i + run; ++layer) {
          multiply(target_.floats + target + (layer - i) * row_elements, row_elements,
                   scale[plan_.layers[layer]]);
        }
      }
      i += run;
    }
    pad(first, last, row_elements);
  }

private:
  void convert(std::uint64_t start, std::uint64_t count, float *target) const {
    const std::size_t width = npy::element_size(type_);
    const npy::ElementType type = type_;
    const Stores stores = stores_;
    reader_.visit(
        start * width, count * width,
        [type, stores, width, target](const std::uint8_t *bytes, std::size_t at, std::size_t size) {
          widen(type, bytes, target + at / width, size / width, stores);
        });
  }

  void normalise(std::uint64_t start, std::uint64_t count, float *target, Range range) const {
    const std::size_t width = npy::element_size(type_);
    const npy::ElementType type = type_;
    const Stores stores = stores_;
    reader_.visit(start * width, count * width,
                  [type, stores, width, range, target](const std::uint8_t *bytes, std::size_t at,
                                                       std::size_t size) {
                    batch::normalise(type, bytes, target + at / width, size / width, range, stores);
                  });
  }

  void copy(std::uint64_t start, std::uint64_t count, std::uint8_t *target) const {
    reader_.read(start * target_.raw_bytes, count * target_.raw_bytes, target);
  }

  static void multiply(float *values, std::uint64_t count, float factor) {
    if (factor != 1.0F) {
      for (std::uint64_t k = 0; k < count; ++k) {
        values[k] *= factor;
      }
    }
  }

  void pad(std::size_t first, std::size_t last, std::uint64_t row_elements) const {
    const std::uint64_t padded = plan_.token_padded * plan_.features;
    for (std::size_t i = first; padded > row_elements && i < last; ++i) {
      const std::uint64_t target = sample_.target + i * sample_.layer_stride + row_elements;
      if (target_.floats == nullptr) {
        std::fill_n(target_.raw + target * target_.raw_bytes,
                    (padded - row_elements) * target_.raw_bytes, std::uint8_t{0});
      } else {
        fill_zeros(target_.floats + target, padded - row_elements, stores_);
      }
    }
  }

  const SampleRows &sample_;
  const RowsPlan &plan_;
  const RowsTarget &target_;
  Stores stores_;
  MemberReader reader_;
  npy::ElementType type_;
};

} // namespace

RowsDecode::RowsDecode(std::vector<SampleRows> samples, OpenFiles files, RowsPlan plan,
                       RowsTarget target, std::size_t threads)
    : samples_(std::move(samples)), files_(std::move(files)), plan_(std::move(plan)),
      target_(target), stores_(stores_of(target.count * sizeof(float))) {
  check_bounds(samples_, plan_, target_.count);
  const std::size_t layers = plan_.layers.size();
  if (!samples_.empty() && layers > 0) {
    const std::size_t wanted_units = threads > 1 ? threads * UNITS_PER_THREAD : 1;
    parts_ =
        std::clamp<std::size_t>((wanted_units + samples_.size() - 1) / samples_.size(), 1, layers);
  }
}

void RowsDecode::decode(std::size_t unit) const {
  const std::size_t layers = plan_.layers.size();
  const std::size_t at = unit / parts_;
  const std::size_t part = unit % parts_;
  const SampleRows &sample = samples_[at];
  const char *member = tensor_name(plan_);
  files::arm_bus_guard();
  try {
    const bool scaled = (sample.scale.size_bytes != 0 || plan_.images) && target_.floats != nullptr;
    // Values that are multiplied afterwards should stay in the cache until then.
    LayerRange range(sample, plan_, target_, scaled && !plan_.images ? Stores::cached : stores_);
    std::vector<float> scale;
    if (scaled) {
      member = scale_name(plan_);
      scale = read_scale(sample, plan_);
      member = tensor_name(plan_);
    }
    range.decode(layers * part / parts_, layers * (part + 1) / parts_, scale);
  } catch (FormatError &error) {
    throw_located(error, *sample.member.file, at, member);
  }
}

void RowsDecode::check_files() const {
  check_unchanged(files_, samples_.size(),
                  [this](std::size_t at) { return samples_[at].member.file; });
}

void read_scales(const std::vector<SampleRows> &samples, const RowsPlan &plan, float *out) {
  check_layers(plan);
  const std::size_t layers = plan.layers.size();
  const std::size_t width = scale_width(plan);
  std::fill_n(out, samples.size() * layers * width, 1.0F);
  for (std::size_t at = 0; at < samples.size(); ++at) {
    if (samples[at].scale.size_bytes == 0 && !plan.images) {
      continue;
    }
    try {
      const std::vector<float> scale = read_scale(samples[at], plan);
      for (std::size_t i = 0; i < layers; ++i) {
        std::copy_n(&scale[plan.layers[i] * width], width, out + (at * layers + i) * width);
      }
    } catch (FormatError &error) {
      throw_located(error, *samples[at].member.file, at, scale_name(plan));
    }
  }
}

} // namespace wdsbench::batch
