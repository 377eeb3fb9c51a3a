//===- Sampler.cpp - From logits to the next token ------------------------===//

#include "Sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "ExactMath.h"
#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

static std::uint64_t randomSeed() {
  std::random_device device;
  return device(); // 32 bits are enough to tell runs apart, and short to type again
}

Sampler::Sampler(const SamplerSettings &chosen, std::int64_t vocabSize)
    : settings(chosen), occurred(static_cast<std::size_t>(vocabSize)), counts(occurred.size()),
      firstState(chosen.seed ? *chosen.seed : randomSeed()), state(firstState) {}

void Sampler::begin(const std::vector<std::int32_t> &prompt) {
  std::fill(occurred.begin(), occurred.end(), 0);
  std::fill(counts.begin(), counts.end(), 0);
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

std::int32_t Sampler::sample(const float *logits) {
  const float *scores = penalised(logits);
  std::int32_t chosen = likeliest(scores);
  if (settings.temperature > 0) {
    double left = uniform() * collect(scores, scores[chosen]);
    // When rounding leaves a little over, it is the likeliest one.
    for (const Candidate &candidate : candidates) {
      left -= candidate.weight;
      if (left < 0) {
        chosen = candidate.id;
        break;
      }
    }
  }
  occurred[static_cast<std::size_t>(chosen)] = 1;
  ++counts[static_cast<std::size_t>(chosen)];
  return chosen;
}

std::vector<TokenProbability> Sampler::distribution(const float *logits) {
  const float *scores = penalised(logits);
  const std::int32_t first = likeliest(scores);
  if (settings.temperature <= 0)
    return {{first, 1}};
  const double total = collect(scores, scores[first]);
  std::vector<TokenProbability> result;
  for (const Candidate &candidate : candidates)
    result.push_back({candidate.id, candidate.weight / total});
  return result;
}

/// The logits less all penalties. Repetition (Keskar et al., CTRL): positive logits are divided by the penalty,
/// negative ones multiplied. Presence and frequency: logit - count * frequency - (count > 0) * presence.
const float *Sampler::penalised(const float *logits) {
  // One pass that also vectorises: NaN and infinity fail the comparison.
  int wrong = 0;
  for (std::size_t i = 0; i < occurred.size(); ++i)
    wrong |= !(logits[i] <= std::numeric_limits<float>::max());
  if (wrong)
    throw Error("the model's logits are not finite numbers (NaN or infinity): run with --verify to see whether the "
                "weights file is damaged");
  if (settings.repeatPenalty == 1 && settings.presencePenalty == 0 && settings.frequencyPenalty == 0)
    return logits;
  changed.assign(logits, logits + occurred.size());
  const float penalty = static_cast<float>(settings.repeatPenalty);
  for (std::size_t i = 0; i < changed.size(); ++i) {
    float &logit = changed[i];
    if (occurred[i])
      logit = logit < 0 ? logit * penalty : logit / penalty;
    if (counts[i])
      logit = static_cast<float>(logit - (counts[i] * settings.frequencyPenalty + settings.presencePenalty));
  }
  return changed.data();
}

/// The first of the largest.
std::int32_t Sampler::likeliest(const float *logits) const {
  const auto chosen = std::max_element(logits, logits + occurred.size()) - logits;
  if (logits[chosen] == -std::numeric_limits<float>::infinity())
    throw Error("the model gives no token any probability: run with --verify to see whether the weights file is "
                "damaged");
  return static_cast<std::int32_t>(chosen);
}

/// Fills the candidates, sorted by their ids; returns the sum of their weights. The likeliest one's weight is 1.
double Sampler::collect(const float *logits, float largest) {
  candidates.resize(occurred.size());
  for (std::size_t i = 0; i < candidates.size(); ++i)
    candidates[i] = {static_cast<std::int32_t>(i), logits[i], 0, 0};
  keepTopK();
  for (Candidate &candidate : candidates)
    candidate.weight = exactExp((double(candidate.logit) - double(largest)) / settings.temperature);
  keepTopP();
  keepMinP();
  keepTypical(largest);
  return totalWeight();
}

double Sampler::totalWeight() const {
  double total = 0;
  for (const Candidate &candidate : candidates)
    total += candidate.weight;
  return total;
}

static constexpr auto byId = [](const auto &a, const auto &b) { return a.id < b.id; };

/// Keeps the k likeliest, and those that are as likely as the last of them.
void Sampler::keepTopK() {
  if (settings.topK <= 0 || static_cast<std::uint64_t>(settings.topK) >= candidates.size())
    return;
  const auto last = candidates.begin() + (settings.topK - 1);
  std::nth_element(candidates.begin(), last, candidates.end(),
                   [](const Candidate &a, const Candidate &b) { return a.logit > b.logit; });
  const float least = last->logit;
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [least](const Candidate &candidate) { return candidate.logit < least; }),
                   candidates.end());
  std::sort(candidates.begin(), candidates.end(), byId);
}

/// Keeps the likeliest candidates until their share reaches top-p; one at least.
void Sampler::keepTopP() {
  if (settings.topP >= 1)
    return;
  for (Candidate &candidate : candidates)
    candidate.rank = -double(candidate.logit);
  keepShare(settings.topP, /*withTies=*/false);
}

/// Keeps what is at least min-p times as likely as the likeliest candidate, whose weight is 1.
void Sampler::keepMinP() {
  const double least = settings.minP;
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [least](const Candidate &candidate) { return candidate.weight < least; }),
                   candidates.end());
}

/// Meister et al., Locally Typical Sampling: keeps those whose information -log p is nearest to its expectation, the
/// entropy, until their share reaches typical-p.
void Sampler::keepTypical(double largest) {
  if (settings.typicalP >= 1)
    return;
  const double total = totalWeight(), logTotal = exactLog(total);
  double entropy = 0;
  for (Candidate &candidate : candidates) {
    candidate.rank = logTotal - (double(candidate.logit) - largest) / settings.temperature; // -log p
    if (candidate.weight > 0)
      entropy += candidate.weight / total * candidate.rank;
  }
  for (Candidate &candidate : candidates)
    candidate.rank = std::fabs(candidate.rank - entropy);
  keepShare(settings.typicalP, /*withTies=*/true);
}

/// Keeps the candidates of the smallest ranks until their share of the weight is reached, one at least; of equal ranks
/// the smaller ids first, or all of them.
void Sampler::keepShare(double share, bool withTies) {
  const double wanted = share * totalWeight();
  // A heap gives the few that are kept without sorting all.
  const auto later = [](const Candidate &a, const Candidate &b) {
    return a.rank != b.rank ? a.rank > b.rank : a.id > b.id;
  };
  std::make_heap(candidates.begin(), candidates.end(), later);
  auto end = candidates.end();
  double kept = 0, rank = 0;
  do {
    rank = candidates.front().rank;
    std::pop_heap(candidates.begin(), end, later);
    --end;
    kept += end->weight;
  } while (end != candidates.begin() && (kept < wanted || (withTies && candidates.front().rank == rank)));
  candidates.erase(candidates.begin(), end);
  std::sort(candidates.begin(), candidates.end(), byId);
}
