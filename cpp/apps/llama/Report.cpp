//===- Report.cpp - What a run tells about itself -------------------------===//

#include "Report.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>

#include <sys/resource.h>

#include "JsonObject.h"
#include "ModelConfig.h"
#include "ModelProfile.h"
#include "ProfileReport.h"
#include "buddy/Error.h"
#include "buddy/Profile.h"

using namespace buddy;
using namespace buddy::llama;

/// The most memory that this process had so far. getrusage would also count the process that started this one.
static std::int64_t peakRssBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::int64_t kibibytes; word == "VmHWM:" && status >> kibibytes)
      return kibibytes * 1024;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024; // Linux counts in KiB
}

/// A token with its text, in which bytes that are no character by themselves are U+FFFD.
static JsonObject tokenJson(const TokenLogProbability &token, const Session &session) {
  JsonObject json;
  json.add("id", static_cast<std::int64_t>(token.id));
  if (session.hasText())
    json.add("text", replaceInvalidUtf8(session.text().tokenBytes(token.id)));
  else
    json.addNull("text");
  if (std::isfinite(token.logProbability))
    json.add("logprob", token.logProbability);
  else
    json.addNull("logprob"); // JSON has no infinity
  return json;
}

static std::vector<JsonObject> logProbabilitiesJson(const Answer &answer, const Session &session) {
  std::vector<JsonObject> tokens;
  for (const TokenLogProbabilities &token : answer.logProbabilities) {
    tokens.push_back(tokenJson(token.chosen, session));
    std::vector<JsonObject> likeliest;
    for (const TokenLogProbability &other : token.likeliest)
      likeliest.push_back(tokenJson(other, session));
    tokens.back().add("top", likeliest);
  }
  return tokens;
}

static std::vector<EntryProfile> takeProfiles() {
  std::vector<EntryProfile> profiles;
  const std::pair<const char *, const char *> entries[] = {
      {"prefill", prefillProfileNames()}, {"decode", decodeProfileNames()}, {"score", scoreProfileNames()}};
  for (const auto &[entry, names] : entries) {
    EntryProfile profile = profileOfEntry(entry, names);
    if (profile.calls > 0)
      profiles.push_back(std::move(profile));
  }
  clearProfile();
  return profiles;
}

void llama::requireProfiling() {
  if (!prefillProfileNames() || !decodeProfileNames())
    throw Error("this program's model was compiled without profiling: leave out --profile, or build it again without "
                "the pipeline option profile=false");
}

std::string llama::profileText() { return profileTable(takeProfiles()); }

std::string llama::answerJson(const Answer &answer, const RunInfo &run, const Session &session) {
  JsonObject json;
  json.add("prompt_ids", answer.promptIds);
  json.add("ids", answer.ids);
  if (session.hasText())
    json.add("text", answer.text);
  else
    json.addNull("text");
  json.add("stop", stopName(answer.stop));
  json.add("prompt_tokens", static_cast<std::int64_t>(answer.promptIds.size()));
  json.add("generated_tokens", static_cast<std::int64_t>(answer.ids.size()));
  json.add("prefilled_tokens", answer.prefilled);
  json.add("load_seconds", run.loadSeconds);
  json.add("prefill_seconds", answer.prefillSeconds);
  json.add("decode_seconds", answer.decodeSeconds);
  json.add("prefill_tokens_per_second", answer.prefillRate());
  json.add("decode_tokens_per_second", answer.decodeRate());
  json.add("peak_rss_bytes", peakRssBytes());
  json.add("threads", static_cast<std::int64_t>(run.threads));
  json.add("dtype", model::dtype);
  json.add("target", model::target);
  if (run.warmUpSeconds)
    json.add("warm_up_seconds", *run.warmUpSeconds);
  if (run.profile)
    json.add("profile", profileJson(takeProfiles()));
  if (run.logProbabilities)
    json.add("logprobs", logProbabilitiesJson(answer, session));
  return json.text();
}

std::string llama::statistics(const Answer &answer, const RunInfo &run) {
  char text[512];
  std::snprintf(text, sizeof text,
                "load     %8.3f s\n"
                "prefill  %8.3f s  %6" PRId64 " tokens  %8.1f tokens/s\n"
                "decode   %8.3f s  %6" PRId64 " tokens  %8.1f tokens/s (first token excluded)\n"
                "stop: %s, threads: %d, peak memory: %.1f MB",
                run.loadSeconds, answer.prefillSeconds, answer.prefilled, answer.prefillRate(), answer.decodeSeconds,
                answer.decoded, answer.decodeRate(), stopName(answer.stop), run.threads,
                static_cast<double>(peakRssBytes()) / 1e6);
  return text + (run.seed ? ", seed: " + std::to_string(*run.seed) : "") + "\n";
}

std::string llama::versionText() {
  return "buddy-llama-run " + std::string(model::exporter) + "\nmodel: " + std::string(model::description) +
         "\ndtype: " + std::string(model::dtype) + "\ntarget: " + std::string(model::target) +
         "\nABI: " + std::string(model::abi) + "\n";
}
