//===- sampler_test.cpp - The sampler gives the same everywhere -----------===//
//
// What must not depend on the platform: exp and log, and with them the tokens that a seed gives. The expected tokens
// were computed once and hold for every target that this test is built for. That the distributions are right is
// judged by tests/e2e/test_app_sampler.py.
//
//===----------------------------------------------------------------------===//

#include "../../cpp/apps/llama/Sampler.cpp" // the program's part of it is no library that tests could link
#include "Check.h"

/// Exact in float: no library function takes part.
static std::vector<float> spreadLogits(std::size_t size, std::uint32_t seed) {
  std::vector<float> logits(size);
  for (float &logit : logits) {
    seed = seed * 1664525u + 1013904223u;
    logit = static_cast<float>(static_cast<std::int32_t>(seed >> 16) - 32768) / 4096;
  }
  return logits;
}

/// A hash (FNV-1a) of 500 tokens.
static std::uint64_t fingerprint(SamplerSettings settings) {
  settings.seed = 2024;
  Sampler sampler(settings, 1000);
  sampler.begin({1, 2, 3});
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::uint32_t step = 0; step < 500; ++step)
    hash = (hash ^ static_cast<std::uint64_t>(sampler.sample(spreadLogits(1000, step).data()))) * 0x100000001b3;
  return hash;
}

static void testExp() {
  double worst = 0;
  for (int i = 0; i <= 200'000; ++i) {
    const double x = -700.0 * i / 200'000, expected = std::exp(x);
    worst = std::max(worst, std::fabs(exactExp(x) - expected) / expected);
  }
  CHECK(worst < 1e-15);
  CHECK(exactExp(0) == 1);
  CHECK(exactExp(-1e300) == 0);
  CHECK(exactExp(-std::numeric_limits<double>::infinity()) == 0);
}

static void testLog() {
  double worst = 0;
  for (int i = 1; i <= 200'000; ++i) {
    const double x = std::ldexp(1 + i / 200'000.0, i % 80 - 20), expected = std::log(x);
    worst = std::max(worst, std::fabs(exactLog(x) - expected) / std::max(1.0, std::fabs(expected)));
  }
  CHECK(worst < 1e-15);
  CHECK(exactLog(1) == 0);
}

static void testTokensOfASeed() {
  SamplerSettings settings;
  settings.temperature = 0.8;
  CHECK(fingerprint(settings) == 0xfaaf7f1f5c249c8b);
  settings.topK = 40;
  settings.topP = 0.9;
  settings.minP = 0.01;
  CHECK(fingerprint(settings) == 0x42d1a9aa5025e6f3);
  settings = {};
  settings.temperature = 1.3;
  settings.typicalP = 0.7;
  settings.repeatPenalty = 1.1;
  settings.presencePenalty = 0.3;
  settings.frequencyPenalty = 0.1;
  CHECK(fingerprint(settings) == 0xc01075cde5697120);
}

int main() {
  testExp();
  testLog();
  testTokensOfASeed();
}
