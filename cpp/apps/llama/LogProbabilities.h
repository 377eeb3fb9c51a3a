//===- LogProbabilities.h - How likely the model thought a token ----------===//

#ifndef BUDDY_APPS_LLAMA_LOGPROBABILITIES_H
#define BUDDY_APPS_LLAMA_LOGPROBABILITIES_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace buddy::llama {

/// A token and the natural logarithm of its probability; minus infinity for an impossible one.
struct TokenLogProbability {
  std::int32_t id;
  double logProbability;
};

/// A chosen token and the likeliest ones, likeliest first (of equal ones, the smaller id).
struct TokenLogProbabilities {
  TokenLogProbability chosen;
  std::vector<TokenLogProbability> likeliest;
};

/// The log-softmax of logits (vocabulary), before any sampling setting; of which the one of `id` and the `count`
/// largest are returned. The logits must be finite or minus infinity, one of them at least finite.
TokenLogProbabilities logProbabilities(const float *logits, std::size_t vocabSize, std::int32_t id, std::size_t count);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_LOGPROBABILITIES_H
