//===- Sampler.cpp - From logits to the next token ------------------------===//

#include "Sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

static std::uint64_t randomSeed() {
  std::random_device device;
  return device(); // 32 bits are enough to tell runs apart, and short to type again
}

Sampler::Sampler(const SamplerSettings &chosen, std::int64_t vocabSize)
    : settings(chosen), occurred(static_cast<std::size_t>(vocabSize)),
      firstState(chosen.seed ? *chosen.seed : randomSeed()), state(firstState) {}

void Sampler::begin(const std::vector<std::int32_t> &prompt) {
  std::fill(occurred.begin(), occurred.end(), 0);
  for (std::int32_t id : prompt)
    occurred[static_cast<std::size_t>(id)] = 1;
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators), as a number in [0, 1).
double Sampler::uniform() {
  std::uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

std::int32_t Sampler::sample(float *logits) {
  // One pass that also vectorises: NaN and infinity fail the comparison.
  int wrong = 0;
  for (std::size_t i = 0; i < occurred.size(); ++i)
    wrong |= !(logits[i] <= std::numeric_limits<float>::max());
  if (wrong)
    throw Error("the model's logits are not finite numbers (NaN or infinity): run with --verify to see whether the "
                "weights file is damaged");
  if (settings.repeatPenalty != 1)
    penalise(logits);
  std::int32_t chosen = likeliest(logits);
  const float largest = logits[chosen];
  if (largest == -std::numeric_limits<float>::infinity())
    throw Error("the model gives no token any probability: run with --verify to see whether the weights file is "
                "damaged");
  if (settings.temperature > 0)
    chosen = draw(logits, largest);
  occurred[static_cast<std::size_t>(chosen)] = 1;
  return chosen;
}

/// Keskar et al., CTRL: positive logits are divided by the penalty, negative ones multiplied.
void Sampler::penalise(float *logits) const {
  const float penalty = static_cast<float>(settings.repeatPenalty);
  for (std::size_t i = 0; i < occurred.size(); ++i)
    if (occurred[i])
      logits[i] = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
}

/// The first of the largest.
std::int32_t Sampler::likeliest(const float *logits) const {
  return static_cast<std::int32_t>(std::max_element(logits, logits + occurred.size()) - logits);
}

std::int32_t Sampler::draw(const float *logits, float largest) {
  candidates.resize(occurred.size());
  for (std::size_t i = 0; i < candidates.size(); ++i)
    candidates[i] = {static_cast<std::int32_t>(i), logits[i], 0};
  keepTopK();
  for (Candidate &candidate : candidates)
    candidate.weight = std::exp((double(candidate.logit) - double(largest)) / settings.temperature);
  keepTopP();
  // The likeliest candidate's weight is 1.
  const double least = settings.minP;
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [least](const Candidate &candidate) { return candidate.weight < least; }),
                   candidates.end());

  const double total = std::accumulate(candidates.begin(), candidates.end(), 0.0,
                                       [](double sum, const Candidate &candidate) { return sum + candidate.weight; });
  double left = uniform() * total;
  for (const Candidate &candidate : candidates) {
    left -= candidate.weight;
    if (left < 0)
      return candidate.id;
  }
  // Rounding left a little over: the likeliest one.
  return likeliest(logits);
}

static constexpr auto likelier = [](const auto &a, const auto &b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};
static constexpr auto byId = [](const auto &a, const auto &b) { return a.id < b.id; };

void Sampler::keepTopK() {
  const auto count = static_cast<std::uint64_t>(settings.topK);
  if (count == 0 || count >= candidates.size())
    return;
  const auto end = candidates.begin() + settings.topK;
  std::nth_element(candidates.begin(), end, candidates.end(), likelier);
  candidates.erase(end, candidates.end());
  std::sort(candidates.begin(), candidates.end(), byId);
}

/// Keeps the likeliest candidates until their share reaches top-p; one at least.
void Sampler::keepTopP() {
  if (settings.topP >= 1)
    return;
  double total = 0;
  for (const Candidate &candidate : candidates)
    total += candidate.weight;
  // A heap gives the few that are kept without sorting all.
  const auto lessLikely = [](const Candidate &a, const Candidate &b) { return likelier(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), lessLikely);
  auto end = candidates.end();
  double kept = 0;
  do {
    std::pop_heap(candidates.begin(), end, lessLikely);
    --end;
    kept += end->weight;
  } while (end != candidates.begin() && kept < settings.topP * total);
  candidates.erase(candidates.begin(), end);
  std::sort(candidates.begin(), candidates.end(), byId);
}
