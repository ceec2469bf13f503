#pragma once

#include "graph/attention.hpp"

/// The numbers of an attention map that closed-form detectors use: four for each head and token.
namespace wdsbench::graph {

/// Numbers of a token, in this order.
///
/// - self_attention: a_ii. The log-determinant of a causal map is the sum of its logarithms.
///   Source: Sriramanan et al., LLM-Check (2024), attention score.
/// - laplacian: d_ii - a_ii with d_ii = sum over i' >= i of a_i'i / (T - i): the diagonal, and so
///   the eigenvalues, of the triangular Laplacian D - A. Source: Binkowski et al., Hallucination
///   detection in LLMs using spectral features of attention maps (2025).
/// - lookback: mean weight on the prompt over itself plus the mean weight on answer tokens up to i.
///   NaN for tokens of the prompt and where its length is unknown. Source: Chuang et al., Lookback
///   Lens (2024).
/// - entropy: - sum over j <= i of a_ij ln a_ij, in nats.
enum class SketchValue : std::uint8_t { self_attention, laplacian, lookback, entropy, COUNT };

constexpr auto SKETCH_VALUES = static_cast<std::size_t>(SketchValue::COUNT);

/// `prompt_length` if it is unknown.
constexpr std::size_t NO_PROMPT = static_cast<std::size_t>(-1);

/// Writes the sketch of one head to `out`, float32 `[T, SKETCH_VALUES]`. Sums are in float64.
/// Throws FormatError(value) if a weight j <= i is not finite.
void sketch_head(const AttentionView &attention, std::size_t head, std::size_t prompt_length,
                 float *out);

} // namespace wdsbench::graph
