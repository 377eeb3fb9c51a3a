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
  bool profile = false;              // the same
  std::optional<double> warmUpSeconds;
};

/// The answer as one JSON object on one line.
std::string answerJson(const Answer &answer, const RunInfo &run, const Session &session);

/// Tokens per second and the like, for people.
std::string statistics(const Answer &answer, const RunInfo &run);

/// Throws Error when the model was compiled without what --profile needs.
void requireProfiling();

/// Where the time since the last profileText or answerJson went, for people; both begin a new count.
std::string profileText();

/// What this program is.
std::string versionText();

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_REPORT_H
