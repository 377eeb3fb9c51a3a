//===- LogProbabilities.cpp - How likely the model thought a token --------===//

#include "LogProbabilities.h"

#include <algorithm>

#include "ExactMath.h"

using namespace buddy;
using namespace buddy::llama;

TokenLogProbabilities llama::logProbabilities(const float *logits, std::size_t vocabSize, std::int32_t id,
                                              std::size_t count) {
  const double largest = *std::max_element(logits, logits + vocabSize);
  double total = 0;
  for (std::size_t i = 0; i < vocabSize; ++i)
    total += exactExp(double(logits[i]) - largest);
  const double shift = largest + exactLog(total);
  const auto entry = [&](std::int32_t token) { return TokenLogProbability{token, double(logits[token]) - shift}; };

  TokenLogProbabilities result{entry(id), {}};
  std::vector<std::int32_t> ids(vocabSize);
  for (std::size_t i = 0; i < vocabSize; ++i)
    ids[i] = static_cast<std::int32_t>(i);
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(count, vocabSize));
  std::partial_sort(ids.begin(), end, ids.end(), [logits](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (auto it = ids.begin(); it != end; ++it)
    result.likeliest.push_back(entry(*it));
  return result;
}
