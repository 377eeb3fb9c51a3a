//===- Sampler.h - From logits to the next token --------------------------===//

#ifndef BUDDY_APPS_LLAMA_SAMPLER_H
#define BUDDY_APPS_LLAMA_SAMPLER_H

#include <cstdint>
#include <optional>
#include <vector>

namespace buddy::llama {

struct SamplerSettings {
  double temperature = 0; // 0: the likeliest token
  std::int64_t topK = 0;  // 0: all
  double topP = 1;
  double minP = 0;
  double repeatPenalty = 1;
  std::optional<std::uint64_t> seed; // nullopt: another one each time
};

/// Chooses tokens: repeat penalty, temperature, top-k, top-p, min-p, in this order (that of transformers' generate).
/// The same seed and logits give the same tokens on every platform.
class Sampler {
public:
  Sampler(const SamplerSettings &chosen, std::int64_t vocabSize);

  /// Starts anew with the tokens that the repeat penalty counts as having occurred.
  void begin(const std::vector<std::int32_t> &prompt);

  /// The next token for logits of shape (vocabulary); they are changed. Throws Error when they are not numbers.
  std::int32_t sample(float *logits);

  /// The seed in use.
  std::uint64_t seed() const noexcept { return firstState; }

private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double weight; // probability times a constant
  };

  void penalise(float *logits) const;
  std::int32_t likeliest(const float *logits) const;
  std::int32_t draw(const float *logits, float largest);
  void keepTopK();
  void keepTopP();
  double uniform();

  SamplerSettings settings;
  std::vector<char> occurred; // (vocabulary)
  std::vector<Candidate> candidates;
  std::uint64_t firstState, state;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_SAMPLER_H
