#pragma once

#include "batch/member_reader.hpp"
#include "batch/widen.hpp"

#include <cstddef>
#include <memory>
#include <vector>

/// Decodes members of B samples into one batch buffer: every layout is a set of placed rows.
namespace wdsbench::batch {

/// One sample: a member `[L, T, D]`, the requested tokens, and their place in the buffer.
struct SampleRows {
  MemberRef member;
  MemberRef scale;                 ///< float32 `[L]` factors (size 0: all 1), or `[L, 2]` ranges.
  std::uint64_t tokens_stored = 0; ///< T according to the index.
  std::uint64_t token_first = 0;
  std::uint64_t token_count = 0;
  std::uint64_t target = 0;       ///< Element of the buffer where the first requested layer starts.
  std::uint64_t layer_stride = 0; ///< Elements of the buffer from one layer to the next.
};

/// Values that all samples of a batch share. Element (layer i of `layers`, token t, feature d) of a
/// sample goes to `target + i * layer_stride + t * features + d`; tokens [token_count,
/// token_padded) of each layer are set to zero.
struct RowsPlan {
  std::uint64_t layers_stored = 0; ///< L of every member.
  std::uint64_t features = 0;      ///< D of every member.
  std::vector<std::uint64_t> layers;
  std::uint64_t token_padded = 0; ///< 0: no padding.
  /// Members are images with ranges (low, high) per layer: x becomes (x - low) / (high - low).
  bool images = false;
};

/// Output of a decode: float32, or elements of one or two bytes as stored (for a GPU that widens
/// them itself; scales and ranges are then not applied).
struct RowsTarget {
  float *floats = nullptr;
  std::uint8_t *raw = nullptr; ///< Used if `floats` is null.
  std::uint64_t count = 0;     ///< Elements.
  std::size_t raw_bytes = 2;   ///< Of an element of `raw`.
};

using OpenFiles = std::vector<std::shared_ptr<const files::ShardFile>>;

/// The decode of one batch, in units for threads. Only the requested layers and tokens are read.
class RowsDecode {
public:
  /// Keeps `files`, the distinct ones of `samples`, open. Throws std::invalid_argument if plan and
  /// samples would write outside `target` or read outside their members.
  RowsDecode(std::vector<SampleRows> samples, OpenFiles files, RowsPlan plan, RowsTarget target,
             std::size_t threads);

  [[nodiscard]] std::size_t units() const { return samples_.size() * parts_; }

  /// Decodes one unit. Throws FormatError with `sample` and `member` set.
  void decode(std::size_t unit) const;

  /// Call after the last unit. Throws FormatError (with `sample`) if a file changed meanwhile.
  void check_files() const;

private:
  std::vector<SampleRows> samples_;
  OpenFiles files_;
  RowsPlan plan_;
  RowsTarget target_;
  Stores stores_;
  std::size_t parts_ = 0; ///< Units of each sample.
};

/// Reads the factors of the requested layers of every sample into `out`, float32 `[B, layers]`, 1
/// for a sample without factors; of images their ranges, `[B, layers, 2]`.
void read_scales(const std::vector<SampleRows> &samples, const RowsPlan &plan, float *out);

/// Throws `error` with sample and member set, or the error of a `file` that changed since it was
/// opened, since zeros and foreign bytes look like any other damage.
[[noreturn]] inline void throw_located(FormatError &error, const files::ShardFile &file,
                                       std::size_t sample, const char *member) {
  const auto locate = [sample, member](FormatError &found) {
    found.sample = sample;
    found.member = member;
  };
  if (error.kind != FormatKind::truncated) {
    try {
      file.check_unchanged();
    } catch (FormatError &changed) {
      locate(changed);
      throw;
    }
  }
  locate(error);
  throw FormatError(error);
}

/// Throws FormatError with the first sample of the first of `files` that changed since it was
/// opened. `file_of(i)` is the file of sample i of `count`.
template <typename FileOf>
void check_unchanged(const OpenFiles &files, std::size_t count, const FileOf &file_of) {
  for (const auto &file : files) {
    try {
      file->check_unchanged();
    } catch (FormatError &error) {
      for (std::size_t at = count; at-- > 0;) {
        if (file_of(at) == file.get()) {
          error.sample = at;
        }
      }
      throw;
    }
  }
}

} // namespace wdsbench::batch
