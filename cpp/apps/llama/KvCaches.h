//===- KvCaches.h - What was evaluated of several conversations -----------===//

#ifndef BUDDY_APPS_LLAMA_KVCACHES_H
#define BUDDY_APPS_LLAMA_KVCACHES_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buddy/MemRef.h"

namespace buddy::llama {

/// The keys and values of one conversation's tokens. Pages take memory once their positions are filled.
struct KvCache {
  /// `shape`: layers, kv heads, positions, bytes of a row.
  explicit KvCache(const MemRef<std::int8_t, 4>::Shape &shape);

  MemRef<std::int8_t, 4> keys, values;
  std::vector<std::int32_t> ids; // the tokens that it holds
  std::size_t promptSize = 0;    // of the last prompt that was meant for it; the tokens behind are an answer
  std::uint64_t lastUse = 0;
};

/// A few caches of one model, of which one is used at a time.
class KvCaches {
public:
  /// Throws Error when `count` is not 1 to `most`, or address space is lacking.
  KvCaches(std::int64_t count, const MemRef<std::int8_t, 4>::Shape &shape);

  static constexpr std::int64_t most = 1024;

  /// Turns to the cache for a prompt, and keeps of it what it has in common with the prompt. That is the cache whose
  /// last prompt this one continues or repeats. Any other prompt begins a new conversation, in the cache that was not
  /// used for the longest time; what the prompt has in common with another cache is copied from there.
  void choose(const std::vector<std::int32_t> &prompt);

  KvCache &current() noexcept { return caches[at]; }
  const KvCache &current() const noexcept { return caches[at]; }
  std::size_t count() const noexcept { return caches.size(); }

  /// Bytes of one cache when it is full.
  std::int64_t bytesEach() const noexcept;

private:
  std::vector<KvCache> caches;
  std::size_t at = 0;
  std::uint64_t uses = 0;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_KVCACHES_H
