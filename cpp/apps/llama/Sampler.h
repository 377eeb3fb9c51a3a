//===- Sampler.h - From logits to the next token --------------------------===//

#ifndef BUDDY_APPS_LLAMA_SAMPLER_H
#define BUDDY_APPS_LLAMA_SAMPLER_H

#include <cstdint>
#include <optional>
#include <vector>

namespace buddy::llama {

struct SamplerSettings {
  double temperature = 0;            // 0: the likeliest token
  std::int64_t topK = 0;             // 0: all
  double topP = 1;                   // 1: all
  double minP = 0;                   // 0: all
  double typicalP = 1;               // 1: all
  double repeatPenalty = 1;          // of tokens of the prompt and the answer; 1: none
  double presencePenalty = 0;        // of tokens of the answer; 0: none
  double frequencyPenalty = 0;       // of tokens of the answer, for each time that they occur; 0: none
  std::optional<std::uint64_t> seed; // nullopt: another one each time
};

/// A token and its probability.
struct TokenProbability {
  std::int32_t id;
  double probability;
};

/// Chooses tokens: penalties for repetition, presence and frequency, then temperature, top-k, top-p, min-p, typical-p,
/// in this order and as transformers' generate defines them; presence and frequency as OpenAI's API defines them. The
/// same seed and logits give the same tokens on every platform.
class Sampler {
public:
  Sampler(const SamplerSettings &chosen, std::int64_t vocabSize);

  /// Starts an answer to the prompt, whose tokens have occurred. The random numbers go on.
  void begin(const std::vector<std::int32_t> &prompt);

  /// The next token for logits (vocabulary). Throws Error when they are not numbers.
  std::int32_t sample(const float *logits);

  /// What sample would draw from: the candidates by their ids, and their probabilities.
  std::vector<TokenProbability> distribution(const float *logits);

  /// The seed in use.
  std::uint64_t seed() const noexcept { return firstState; }

private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double weight; // probability times a constant
    double rank;   // the smaller, the rather it is kept
  };

  const float *penalised(const float *logits);
  std::int32_t likeliest(const float *logits) const;
  double collect(const float *logits, float largest);
  void keepTopK();
  void keepTopP();
  void keepMinP();
  void keepTypical(double largest);
  void keepShare(double share, bool withTies);
  double totalWeight() const;
  double uniform();

  SamplerSettings settings;
  std::vector<char> occurred;       // (vocabulary), in prompt or answer
  std::vector<std::int32_t> counts; // (vocabulary), in the answer
  std::vector<float> changed;       // (vocabulary), logits less penalties
  std::vector<Candidate> candidates;
  std::uint64_t firstState, state;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_SAMPLER_H
