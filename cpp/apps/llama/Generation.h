//===- Generation.h - From a prompt to an answer --------------------------===//

#ifndef BUDDY_APPS_LLAMA_GENERATION_H
#define BUDDY_APPS_LLAMA_GENERATION_H

#include <cstdint>
#include <string>
#include <vector>

#include "Options.h"
#include "Sampler.h"
#include "Session.h"

namespace buddy::llama {

/// Why an answer ended: the model's end token, -n, a stop string, a full context, Ctrl-C.
enum class Stop { End, Length, StopString, Context, Interrupt };

struct Answer {
  std::vector<std::int32_t> promptIds;
  std::vector<std::int32_t> ids; // generated, without the end token
  std::string text;              // up to a stop string
  Stop stop = Stop::Length;

  std::int64_t prefilled = 0; // tokens of the prompt that were not in the caches yet
  std::int64_t decoded = 0;   // generated tokens but the first, which the prompt's logits gave
  double prefillSeconds = 0, decodeSeconds = 0;

  /// Adds another answer's tokens and seconds, and takes its reason to stop.
  void addTimes(const Answer &other);

  double prefillRate() const { return prefillSeconds > 0 ? static_cast<double>(prefilled) / prefillSeconds : 0; }
  double decodeRate() const { return decodeSeconds > 0 ? static_cast<double>(decoded) / decodeSeconds : 0; }
};

/// Evaluates the prompt and generates behind it, printing the text as the options say. Throws Error for an empty
/// prompt and for one that is longer than the context.
Answer generate(Session &session, Sampler &sampler, std::vector<std::int32_t> promptIds, const Options &options);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_GENERATION_H
