//===- Session.h - A loaded model and what its caches hold ----------------===//

#ifndef BUDDY_APPS_LLAMA_SESSION_H
#define BUDDY_APPS_LLAMA_SESSION_H

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "KvCaches.h"
#include "buddy/MemRef.h"
#include "buddy/Text.h"
#include "buddy/Weights.h"

namespace buddy::llama {

/// What opens a model.
struct SessionOptions {
  std::string modelDir;      // empty: the running program's own folder
  std::int64_t context = 0;  // positions in the caches; 0: defaultContext()
  std::int64_t ubatch = 512; // tokens of a prompt that are evaluated at once
  std::int64_t caches = 1;   // how many conversations stay evaluated, each in a cache of its own
  int threads = 0;           // of the whole process; 0: the CPUs that it may use
  bool verify = false;       // check the weights' content
};

class Session {
public:
  /// Loads the files and sets the number of threads. Throws Error: for files that are missing, damaged or of another
  /// model, for a CPU that lacks what the generated code needs, and for a context that the model does not have.
  explicit Session(const SessionOptions &options);

  /// The context of a session that asks for none, and the longest one.
  static std::int64_t defaultContext() noexcept;
  static std::int64_t maxContext() noexcept;

  /// The tokenizer; throws Error when the model or the folder has none. hasText asks before.
  const Text &text() const;
  bool hasText() const noexcept { return vocabulary.has_value(); }

  /// True for the ids that end an answer.
  bool isEnd(std::int32_t id) const;

  /// The two hashes that tell which program and which model this is: 64 hexadecimal digits each.
  std::string_view abi() const noexcept;
  const std::string &modelId() const { return weights.modelId(); }

  /// Turns to the cache that is best for the prompt `ids` (see KvCaches::choose) and keeps of it what it has in common
  /// with that, but for the last token, whose logits are wanted. Returns the number of tokens kept.
  std::size_t keepPrefix(const std::vector<std::int32_t> &ids);

  /// Evaluates tokens behind those in the cache; there must be room. Asks `cancelled` before each evaluation, and
  /// returns false when it said yes; what was evaluated so far stays.
  bool feed(const std::int32_t *ids, std::size_t count, const std::function<bool()> &cancelled = nullptr);

  /// Evaluates as much of `ids` as one evaluation takes, and a token behind it, and forgets them: so that the pages of
  /// the weights and of all buffers are there, and the threads run. The cache must be empty.
  void warmUp(const std::vector<std::int32_t> &ids);

  /// The logits (vocabulary) of the last token that was fed.
  const float *logits() const noexcept { return lastLogits.data(); }

  /// Called with the logits after each evaluation; for each of its tokens where the model has the entry point score.
  void onLogits(std::function<void(const float *)> receiver) { receiveLogits = std::move(receiver); }

  std::int64_t vocabSize() const noexcept { return lastLogits.size(2); }
  std::int64_t contextSize() const noexcept { return keys().size(2); }
  const KvCaches &caches() const noexcept { return kvCaches; }

  // The rest is about the cache that is used now.

  /// The tokens that it holds, and how many they are.
  const std::vector<std::int32_t> &ids() const noexcept { return kvCaches.current().ids; }
  std::size_t size() const noexcept { return ids().size(); }
  bool isFull() const noexcept { return static_cast<std::int64_t>(size()) >= contextSize(); }

  /// Its content (layer, kv head, position, bytes of a row), for who saves or restores it; adopt says which tokens it
  /// holds from now on.
  MemRef<std::int8_t, 4> &keys() noexcept { return kvCaches.current().keys; }
  MemRef<std::int8_t, 4> &values() noexcept { return kvCaches.current().values; }
  const MemRef<std::int8_t, 4> &keys() const noexcept { return kvCaches.current().keys; }
  const MemRef<std::int8_t, 4> &values() const noexcept { return kvCaches.current().values; }
  void adopt(std::vector<std::int32_t> ids) { kvCaches.current().ids = std::move(ids); }

private:
  void evaluate(std::size_t count);
  void evaluateEach(std::size_t count);

  Weights weights;
  MemRef<std::int8_t, 1> base;
  std::string missingText; // why there is no vocabulary; filled while that is loaded
  std::optional<Text> vocabulary;
  KvCaches kvCaches;             // the model knows the elements
  MemRef<std::int64_t, 2> batch; // (1, ubatch)
  MemRef<float, 3> lastLogits;   // (1, 1, vocabulary)
  MemRef<std::int8_t, 1> arena;  // the temporaries of a call
  std::function<void(const float *)> receiveLogits;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_SESSION_H
