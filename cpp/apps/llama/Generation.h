//===- Generation.h - From a prompt to an answer --------------------------===//

#ifndef BUDDY_APPS_LLAMA_GENERATION_H
#define BUDDY_APPS_LLAMA_GENERATION_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "LogProbabilities.h"
#include "Sampler.h"
#include "Session.h"

namespace buddy::llama {

/// What one generation depends on beside the model and the prompt.
struct GenerationOptions {
  std::int64_t maxTokens = 128;   // -1: until the model stops
  std::vector<std::string> stops; // none of them empty; they need a vocabulary
  bool ignoreEnd = false;         // go on past the tokens that end an answer
  SamplerSettings sampler;
  std::optional<std::size_t> logProbabilities; // how many of the likeliest tokens to report with each token
};

/// Why an answer ended: the model's end token, the most tokens, a stop string, a full context, or its receiver.
enum class Stop { End, Length, StopString, Context, Interrupt };

/// "eos", "length", "stop-string", "context", "interrupt".
const char *stopName(Stop stop) noexcept;

struct Answer {
  std::vector<std::int32_t> promptIds;
  std::vector<std::int32_t> ids; // generated, without the end token
  std::string text;              // up to a stop string
  Stop stop = Stop::Length;
  std::vector<TokenLogProbabilities> logProbabilities; // of each id, when asked for

  std::int64_t prefilled = 0; // tokens of the prompt that were not in the caches yet
  std::int64_t decoded = 0;   // generated tokens but the first, which the prompt's logits gave
  double prefillSeconds = 0, decodeSeconds = 0;

  /// Adds another answer's tokens and seconds, and takes its reason to stop.
  void addTimes(const Answer &other);

  double prefillRate() const { return prefillSeconds > 0 ? static_cast<double>(prefilled) / prefillSeconds : 0; }
  double decodeRate() const { return decodeSeconds > 0 ? static_cast<double>(decoded) / decodeSeconds : 0; }
};

/// One generated token, as its receiver sees it.
struct GeneratedToken {
  std::int32_t id;
  bool hasText;          // false without a vocabulary: there is no text at all
  std::string_view text; // whole characters that are known now not to be part of a stop string; may be empty
  const TokenLogProbabilities *logProbabilities; // null unless asked for
};

/// Takes an answer while it is made. What a member throws ends the generation and goes to its caller; the session can
/// be used for another one.
class Receiver {
public:
  virtual ~Receiver() = default;

  /// Called for each token. False ends the answer: Stop::Interrupt.
  virtual bool onToken(const GeneratedToken &token) = 0;

  /// Called once, at the end, with the text that was held back; it may be empty.
  virtual void onEnd(std::string_view rest) { static_cast<void>(rest); }

  /// Asked before each evaluation, those of the prompt too. True ends the answer: Stop::Interrupt.
  virtual bool cancelled() { return false; }
};

/// Evaluates the prompt, as far as it is not in the session's caches, and generates behind it. Throws Error for an
/// empty prompt, for one that is longer than the context, and for ids that the model does not have. Prints nothing.
Answer generate(Session &session, Sampler &sampler, std::vector<std::int32_t> promptIds,
                const GenerationOptions &options, Receiver &receiver);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_GENERATION_H
