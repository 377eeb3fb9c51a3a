//===- sampler-tool.cpp - The sampler's distributions, for tests ----------===//
//
// Arguments: temperature, top-k, top-p, min-p, typical-p, repetition, presence and frequency penalty. Standard input is
// a row of cases, each of 32-bit words: the size of the vocabulary, the length of the prompt and its ids, the length of
// the answer so far and its ids, and the logits. Standard output has for each case the number of candidates, and for
// each of these a 64-bit id and a 64-bit probability.
//
//===----------------------------------------------------------------------===//

#include <cstdio>
#include <cstdlib>

#include "Sampler.h"

using namespace buddy::llama;

/// False at the end of the input.
static bool readSize(std::int32_t &size) { return std::fread(&size, sizeof size, 1, stdin) == 1; }

template <typename T> static std::vector<T> readVector(std::int32_t size) {
  std::vector<T> values(static_cast<std::size_t>(size));
  if (std::fread(values.data(), sizeof(T), values.size(), stdin) != values.size())
    std::abort();
  return values;
}

int main(int argc, char **argv) {
  if (argc != 9)
    return 2;
  SamplerSettings settings;
  settings.temperature = std::atof(argv[1]);
  settings.topK = std::atoll(argv[2]);
  settings.topP = std::atof(argv[3]);
  settings.minP = std::atof(argv[4]);
  settings.typicalP = std::atof(argv[5]);
  settings.repeatPenalty = std::atof(argv[6]);
  settings.presencePenalty = std::atof(argv[7]);
  settings.frequencyPenalty = std::atof(argv[8]);
  settings.seed = 1;

  std::int32_t vocabSize = 0, size = 0;
  while (readSize(vocabSize)) {
    Sampler sampler(settings, vocabSize);
    if (!readSize(size))
      return 1;
    sampler.begin(readVector<std::int32_t>(size));
    if (!readSize(size))
      return 1;
    for (std::int32_t id : readVector<std::int32_t>(size)) {
      // The sampler knows of the answer what it chose: let it have no choice.
      std::vector<float> certain(static_cast<std::size_t>(vocabSize), -1e30f);
      certain[static_cast<std::size_t>(id)] = 1e30f;
      if (sampler.sample(certain.data()) != id)
        return 1;
    }
    const std::vector<TokenProbability> all = sampler.distribution(readVector<float>(vocabSize).data());
    const auto count = static_cast<std::int64_t>(all.size());
    std::fwrite(&count, sizeof count, 1, stdout);
    for (const TokenProbability &token : all) {
      const std::int64_t id = token.id;
      std::fwrite(&id, sizeof id, 1, stdout);
      std::fwrite(&token.probability, sizeof token.probability, 1, stdout);
    }
  }
  return 0;
}
