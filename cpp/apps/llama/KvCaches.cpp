//===- KvCaches.cpp - What was evaluated of several conversations ---------===//

#include "KvCaches.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

KvCache::KvCache(const MemRef<std::int8_t, 4>::Shape &shape)
    : keys(MemRef<std::int8_t, 4>::lazy(shape)), values(MemRef<std::int8_t, 4>::lazy(shape)) {}

KvCaches::KvCaches(std::int64_t count, const MemRef<std::int8_t, 4>::Shape &shape) {
  if (count < 1 || count > most)
    throw Error(std::to_string(count) + " sessions were asked for: give 1 to " + std::to_string(most));
  for (std::int64_t i = 0; i < count; ++i)
    caches.emplace_back(shape);
}

std::int64_t KvCaches::bytesEach() const noexcept {
  const MemRef<std::int8_t, 4>::Shape &shape = current().keys.sizes();
  return 2 * shape[0] * shape[1] * shape[2] * shape[3];
}

/// How many tokens both begin with.
static std::size_t common(const KvCache &cache, const std::vector<std::int32_t> &prompt) {
  const std::size_t most = std::min(cache.ids.size(), prompt.size());
  const auto end = prompt.begin() + static_cast<std::ptrdiff_t>(most);
  return static_cast<std::size_t>(std::mismatch(prompt.begin(), end, cache.ids.begin()).first - prompt.begin());
}

/// True when the prompt begins with all that was evaluated of the cache's last one, and there is something.
static bool goesOn(const KvCache &cache, std::size_t shared) {
  return shared > 0 && shared >= std::min(cache.promptSize, cache.ids.size());
}

/// Copies the positions from `begin` to `end`, which stand together for each layer and head.
static void copyPositions(const MemRef<std::int8_t, 4> &from, MemRef<std::int8_t, 4> &to, std::size_t begin,
                          std::size_t end) {
  const auto row = static_cast<std::size_t>(to.size(3)), head = static_cast<std::size_t>(to.strides()[1]);
  const auto heads = static_cast<std::size_t>(to.size(0) * to.size(1));
  for (std::size_t i = 0; i < heads; ++i)
    std::memcpy(to.data() + i * head + begin * row, from.data() + i * head + begin * row, (end - begin) * row);
}

void KvCaches::choose(const std::vector<std::int32_t> &prompt) {
  std::vector<std::size_t> shared;
  for (const KvCache &cache : caches)
    shared.push_back(common(cache, prompt));
  const auto mostShared = [&](std::size_t a, std::size_t b) { return shared[a] < shared[b]; };

  std::size_t richest = 0, chosen = 0;
  for (std::size_t i = 1; i < caches.size(); ++i) {
    richest = std::max(richest, i, mostShared);
    if (caches[i].lastUse < caches[chosen].lastUse)
      chosen = i;
  }
  bool found = false;
  for (std::size_t i = 0; i < caches.size(); ++i)
    if (goesOn(caches[i], shared[i]) && (!found || shared[i] > shared[chosen])) {
      chosen = i;
      found = true;
    }

  KvCache &cache = caches[chosen];
  std::size_t kept = shared[chosen];
  if (shared[richest] > kept) {
    copyPositions(caches[richest].keys, cache.keys, kept, shared[richest]);
    copyPositions(caches[richest].values, cache.values, kept, shared[richest]);
    kept = shared[richest];
  }
  cache.ids.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(kept));
  cache.promptSize = prompt.size();
  cache.lastUse = ++uses;
  at = chosen;
}
