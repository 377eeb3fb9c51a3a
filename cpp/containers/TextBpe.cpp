//===- TextBpe.cpp - Byte-level byte pair encoding ------------------------===//

#include "TextBpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

using namespace buddy;

namespace {

constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void refuseTwins(std::int32_t a, std::int32_t b, std::string_view bytes) {
  throw VocabDamage("two of its tokens, " + std::to_string(a) + " and " + std::to_string(b) + ", are both " +
                    quotedToken(bytes));
}

} // namespace

BpeModel::BpeModel(const VocabFile &vocab) : unknown(vocab.unknown), fuseUnknown(vocab.fuseUnknown) {
  byteIds.fill(-1);
  if (vocab.ignoreMerges)
    whole.reserve(vocab.tokenCount());
  for (std::size_t i = 0; i < vocab.tokenCount(); ++i) {
    if (!(vocab.flags[i] & TokenIsInModel))
      continue;
    const auto id = static_cast<std::int32_t>(i);
    const std::string_view bytes = vocab.token(i);
    if (bytes.size() == 1) {
      std::int32_t &slot = byteIds[static_cast<std::uint8_t>(bytes[0])];
      if (slot >= 0)
        refuseTwins(slot, id, bytes);
      slot = id;
    }
    if (vocab.ignoreMerges)
      if (const auto [found, added] = whole.emplace(bytes, id); !added)
        refuseTwins(found->second, id, bytes);
  }

  std::size_t capacity = 16;
  while (capacity < vocab.merges.size() * 2)
    capacity *= 2;
  table.assign(capacity, {0, 0, -1});
  for (std::size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const Merge &merge = vocab.merges[rank];
    PairMerge &slot = table[slotOf(pairOf(merge.left, merge.right))];
    if (slot.result >= 0)
      throw VocabDamage("two of its merges join the tokens " + std::to_string(merge.left) + " and " +
                        std::to_string(merge.right));
    slot = {pairOf(merge.left, merge.right), static_cast<std::uint32_t>(rank), merge.result};
  }
}

/// The slot that holds `pair`, or the empty one where it would stand. At least half of the table is empty.
std::size_t BpeModel::slotOf(std::uint64_t pair) const {
  const std::uint64_t mixed = pair * 0x9e3779b97f4a7c15ULL; // Fibonacci hashing
  std::size_t slot = static_cast<std::size_t>(mixed ^ (mixed >> 32)) & (table.size() - 1);
  while (table[slot].result >= 0 && table[slot].pair != pair)
    slot = (slot + 1) & (table.size() - 1);
  return slot;
}

const BpeModel::PairMerge *BpeModel::findMerge(std::int32_t left, std::int32_t right) const {
  const PairMerge &found = table[slotOf(pairOf(left, right))];
  return found.result >= 0 ? &found : nullptr;
}

/// One symbol per byte. A byte without a token is the unknown token, or nothing at all where there is none: its
/// neighbours then meet, as in the reference.
void BpeModel::fillSymbols(std::string_view piece, std::vector<Scratch::Symbol> &symbols) const {
  symbols.clear();
  bool afterUnknown = false;
  for (const char c : piece) {
    const std::int32_t known = byteIds[static_cast<std::uint8_t>(c)];
    const std::int32_t id = known >= 0 ? known : unknown;
    const bool fused = known < 0 && fuseUnknown && afterUnknown;
    afterUnknown = known < 0;
    if (id < 0 || fused)
      continue;
    const auto index = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1}); // the first one's `previous` wraps to none
  }
  if (!symbols.empty())
    symbols.back().next = none;
}

void BpeModel::propose(Scratch &scratch, std::uint32_t left, std::uint32_t right) const {
  if (left == none || right == none)
    return;
  if (const PairMerge *merge = findMerge(scratch.symbols[left].id, scratch.symbols[right].id))
    scratch.heap.push_back({merge->rank, left, merge->result});
}

void BpeModel::encode(std::string_view piece, Scratch &scratch, std::vector<std::int32_t> &out) const {
  if (!whole.empty()) {
    if (const auto found = whole.find(piece); found != whole.end()) {
      out.push_back(found->second);
      return;
    }
  }
  auto &symbols = scratch.symbols;
  auto &heap = scratch.heap;
  fillSymbols(piece, symbols);
  heap.clear();
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i)
    propose(scratch, i, i + 1);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  const auto proposeAndSift = [&](std::uint32_t left, std::uint32_t right) {
    const std::size_t before = heap.size();
    propose(scratch, left, right);
    if (heap.size() > before)
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol &left = symbols[best.position];
    if (left.id < 0 || left.next == none)
      continue;
    Scratch::Symbol &right = symbols[left.next];
    const PairMerge *merge = findMerge(left.id, right.id);
    if (!merge || merge->result != best.result)
      continue; // one of the two was merged with another symbol meanwhile
    left.id = best.result;
    left.next = right.next;
    right.id = -1;
    if (left.next != none)
      symbols[left.next].previous = best.position;
    proposeAndSift(left.previous, best.position);
    proposeAndSift(best.position, left.next);
  }
  for (const Scratch::Symbol &symbol : symbols)
    if (symbol.id >= 0)
      out.push_back(symbol.id);
}
