//===- toy-model.cpp - A toy in the place of a compiled model -------------===//
//
// It has the entry points of a model (docs/architecture.md) and reads everything through them: the logits depend on the
// last token, by a table in the weights, and on all tokens and their positions, by way of the caches, so that a wrong
// position, a lost token or a cache that was not kept show. tests/e2e/toy_model.py has the same in NumPy.
//
//   logits[j] = table[last][j] + ((31 s + 17 j) mod 97) / 97,   s = sum over the cached tokens of id * (position + 1)
//
//===----------------------------------------------------------------------===//

#include BUDDY_MODEL_CONFIG_HEADER

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "buddy/Profile.h"

namespace model = buddy::models::BUDDY_MODEL;

static void evaluate(buddy::MemRef<std::int8_t, 1> &weights, buddy::MemRef<std::int64_t, 2> &ids, std::int64_t position,
                     buddy::MemRef<float, 4> &kCache, buddy::MemRef<float, 4> &vCache,
                     buddy::MemRef<float, 3> &logits) {
  const std::int64_t count = ids.size(1), end = position + count;
  const bool rightShapes = kCache.sizes() == vCache.sizes() && kCache.size(0) == model::layers &&
                           kCache.size(1) == model::kvHeads && kCache.size(3) == model::headDim &&
                           logits.size(2) == model::vocabSize && end <= kCache.size(2) && count > 0 &&
                           reinterpret_cast<std::uintptr_t>(weights.data()) % 64 == 0;
  if (!rightShapes)
    std::abort();
  for (std::int64_t layer = 0; layer < model::layers; ++layer)
    for (std::int64_t head = 0; head < model::kvHeads; ++head)
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t d = 0; d < model::headDim; ++d) {
          kCache(layer, head, position + i, d) = static_cast<float>(ids(0, i));
          vCache(layer, head, position + i, d) = static_cast<float>(position + i + 1);
        }
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < end; ++i)
    sum += static_cast<std::int64_t>(kCache(model::layers - 1, model::kvHeads - 1, i, model::headDim - 1)) *
           static_cast<std::int64_t>(vCache(0, 0, i, 0));

  // The table (vocabulary, vocabulary), and behind it the milliseconds that a call takes.
  const float *table = reinterpret_cast<const float *>(weights.data());
  const std::int64_t last = ids(0, count - 1);
  for (std::int64_t j = 0; j < model::vocabSize; ++j)
    logits(0, 0, j) = table[last * model::vocabSize + j] + static_cast<float>((31 * sum + 17 * j) % 97) / 97.0f;
  const float delay = table[model::vocabSize * model::vocabSize];
  if (delay > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(delay * 1000)));
}

/// Bytes that a call on `tokens` tokens wants of its arena, and a use of all of them.
static std::int64_t arenaSize(std::int64_t tokens) { return 128 + 64 * tokens; }
static void useArena(buddy::MemRef<std::int8_t, 1> &arena, std::int64_t tokens) {
  if (arena.size(0) < arenaSize(tokens) || reinterpret_cast<std::uintptr_t>(arena.data()) % 64 != 0)
    std::abort();
  std::fill_n(arena.data(), arenaSize(tokens), std::int8_t{-1});
}

#define BUDDY_CONCAT2(a, b) a##b
#define BUDDY_CONCAT3(a, b, c) a##b##c
#define BUDDY_ENTRY(name, entry) BUDDY_CONCAT3(_mlir_ciface_, name, entry)
#define BUDDY_NAMES(name, entry) BUDDY_CONCAT2(name, entry##_profile_names)

// A model that was compiled with profiling. Region 1 is never entered, and the first one of decode twice.
#ifdef TOY_PROFILE
extern "C" {
extern const char BUDDY_NAMES(BUDDY_MODEL, _prefill)[];
extern const char BUDDY_NAMES(BUDDY_MODEL, _decode)[];
const char BUDDY_NAMES(BUDDY_MODEL, _prefill)[] = "embed/embedding\nnever\nlayers.*.mlp/linear\n";
const char BUDDY_NAMES(BUDDY_MODEL,
                       _decode)[] = "embed/embedding\t1000\nnever\t5\nlayers.*.mlp/linear\t2000000\t8000\n";
}
static void enterRegion(const char *module, std::int64_t region, int milliseconds) {
  buddy_profile_begin(module, region);
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  buddy_profile_end(module, region);
}
#define ENTER(entry, region, milliseconds) enterRegion(BUDDY_NAMES(BUDDY_MODEL, entry), region, milliseconds)
#else
#define ENTER(entry, region, milliseconds) static_cast<void>(0)
#endif

extern "C" void BUDDY_ENTRY(BUDDY_MODEL, _prefill)(buddy::MemRef<std::int8_t, 1> *weights,
                                                   buddy::MemRef<std::int64_t, 2> *ids, std::int64_t position,
                                                   buddy::MemRef<float, 4> *kCache, buddy::MemRef<float, 4> *vCache,
                                                   buddy::MemRef<float, 3> *logits,
                                                   buddy::MemRef<std::int8_t, 1> *arena) {
  useArena(*arena, ids->size(1));
  ENTER(_prefill, 0, 1);
  ENTER(_prefill, 2, 10);
  evaluate(*weights, *ids, position, *kCache, *vCache, *logits);
}

extern "C" void BUDDY_ENTRY(BUDDY_MODEL, _decode)(buddy::MemRef<std::int8_t, 1> *weights,
                                                  buddy::MemRef<std::int64_t, 2> *ids, std::int64_t position,
                                                  buddy::MemRef<float, 4> *kCache, buddy::MemRef<float, 4> *vCache,
                                                  buddy::MemRef<float, 3> *logits,
                                                  buddy::MemRef<std::int8_t, 1> *arena) {
  useArena(*arena, 1);
  if (ids->size(1) != 1)
    std::abort();
  ENTER(_decode, 0, 1);
  ENTER(_decode, 0, 1);
  ENTER(_decode, 2, 10);
  evaluate(*weights, *ids, position, *kCache, *vCache, *logits);
}

extern "C" std::int64_t BUDDY_ENTRY(BUDDY_MODEL, _prefill_arena_size)(std::int64_t tokens) { return arenaSize(tokens); }
extern "C" std::int64_t BUDDY_ENTRY(BUDDY_MODEL, _decode_arena_size)(std::int64_t tokens) { return arenaSize(tokens); }
