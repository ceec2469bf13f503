#pragma once

#include "batch/member_reader.hpp"

#include <cstddef>
#include <optional>
#include <vector>

/// Members of B samples into one float32 batch buffer: every layout is a set of rows with a place
/// each.
namespace wdsbench::batch {

/// One sample: a member `[L, T, D]`, which of its tokens are wanted, and where they go.
struct SampleRows {
  MemberRef member;
  MemberRef scale;                 ///< float32 `[L]` factors; size 0 where every factor is 1.
  std::uint64_t tokens_stored = 0; ///< T that the index announces.
  std::uint64_t token_first = 0;
  std::uint64_t token_count = 0;
  std::uint64_t target = 0;       ///< Element of the buffer where the first wanted layer starts.
  std::uint64_t layer_stride = 0; ///< Elements of the buffer from one layer to the next.
};

/// What all samples of a batch share. Element (layer i of `layers`, token t, feature d) of a sample
/// goes to `target + i * layer_stride + t * features + d`; tokens [token_count, token_padded) of
/// each layer are set to zero.
struct RowsPlan {
  std::uint64_t layers_stored = 0; ///< L of every member.
  std::uint64_t features = 0;      ///< D of every member.
  std::vector<std::uint64_t> layers;
  std::uint64_t token_padded = 0; ///< 0: no padding.
  bool bf16 = false;              ///< '<u2' members hold bfloat16 bits.
};

/// Decodes all samples into `out`, float32 `[out_count]`, on up to `threads` threads. Of layers and
/// tokens not wanted not even the bytes are read. Throws FormatError with `sample` and `member`
/// set; `out` is then half written. Throws std::invalid_argument where plan and samples would write
/// outside `out` or read outside their members.
void decode_rows(const std::vector<SampleRows> &samples, const RowsPlan &plan, float *out,
                 std::uint64_t out_count, std::size_t threads);

} // namespace wdsbench::batch
