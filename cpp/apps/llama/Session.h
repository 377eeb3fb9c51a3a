//===- Session.h - A loaded model and what its caches hold ----------------===//

#ifndef BUDDY_APPS_LLAMA_SESSION_H
#define BUDDY_APPS_LLAMA_SESSION_H

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "Options.h"
#include "buddy/MemRef.h"
#include "buddy/Text.h"
#include "buddy/Weights.h"

namespace buddy::llama {

class Session {
public:
  /// Loads the files that the options name. Throws Error.
  explicit Session(const Options &options);

  /// The tokenizer; throws Error when the model or the folder has none. hasText asks before.
  const Text &text() const;
  bool hasText() const noexcept { return vocabulary.has_value(); }

  /// True for the ids that end an answer.
  bool isEnd(std::int32_t id) const;

  /// Keeps of the caches what they have in common with `ids`, but for the last token, whose logits are wanted.
  /// Returns the number of tokens kept.
  std::size_t keepPrefix(const std::vector<std::int32_t> &ids);

  /// Evaluates tokens behind those in the caches; there must be room. False when Ctrl-C came in between.
  bool feed(const std::int32_t *ids, std::size_t count);

  /// The logits (vocabulary) of the last token that was fed; the sampler may change them.
  float *logits() noexcept { return lastLogits.data(); }

  /// Called with the logits after each evaluation.
  void onLogits(std::function<void(const float *)> receiver) { receiveLogits = std::move(receiver); }

  std::int64_t vocabSize() const noexcept { return lastLogits.size(2); }
  std::int64_t contextSize() const noexcept { return kCache.size(2); }
  /// How many tokens are in the caches.
  std::size_t size() const noexcept { return fed.size(); }
  bool isFull() const noexcept { return static_cast<std::int64_t>(fed.size()) >= contextSize(); }

private:
  void evaluate(std::size_t count);

  Weights weights;
  MemRef<std::int8_t, 1> base;
  std::string missingText; // why there is no vocabulary; filled while that is loaded
  std::optional<Text> vocabulary;
  MemRef<float, 4> kCache, vCache; // (layer, kv head, position, head_dim)
  MemRef<std::int64_t, 2> batch;   // (1, ubatch)
  MemRef<float, 3> lastLogits;     // (1, 1, vocabulary)
  MemRef<std::int8_t, 1> arena;    // the temporaries of a call
  std::vector<std::int32_t> fed;   // the tokens that are in the caches
  std::function<void(const float *)> receiveLogits;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_SESSION_H
