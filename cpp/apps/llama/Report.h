//===- Report.h - What a run tells about itself ---------------------------===//

#ifndef BUDDY_APPS_LLAMA_REPORT_H
#define BUDDY_APPS_LLAMA_REPORT_H

#include <optional>
#include <string>

#include "Generation.h"

namespace buddy::llama {

/// What the numbers of a run depend on beside the answer.
struct RunInfo {
  double loadSeconds = 0;
  int threads = 0;
  std::optional<std::uint64_t> seed; // when the answer was sampled
  bool logProbabilities = false;     // whether they were asked for
};

/// The answer as one JSON object on one line.
std::string answerJson(const Answer &answer, const RunInfo &run, const Session &session);

/// Tokens per second and the like, for people.
std::string statistics(const Answer &answer, const RunInfo &run);

/// What this program is.
std::string versionText();

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_REPORT_H
