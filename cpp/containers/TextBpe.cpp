//===- TextBpe.cpp - Byte pair encoding -----------------------------------===//

#include "TextBpe.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

using namespace buddy;

namespace {

constexpr std::int32_t gone = -1, unknownCharacter = -2;
constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void refuseTwins(std::int32_t a, std::int32_t b, std::string_view bytes) {
  throw VocabDamage("two of its tokens, " + std::to_string(a) + " and " + std::to_string(b) + ", are both " +
                    quotedToken(bytes));
}

} // namespace

BpeModel::BpeModel(const VocabFile &file, const Trie &symbols) : vocab(file), userDefined(symbols) {
  byteIds.fill(-1);
  if (vocab.ignoreMerges)
    whole.reserve(vocab.tokenCount());
  for (std::size_t i = 0; i < vocab.tokenCount(); ++i)
    if (vocab.flags[i] & TokenIsInModel)
      addToken(vocab, static_cast<std::int32_t>(i));
  addMerges(vocab);
}

void BpeModel::addToken(const VocabFile &file, std::int32_t id) {
  const auto index = static_cast<std::size_t>(id);
  const std::string_view bytes = file.token(index);
  const auto take = [&](std::int32_t &slot) {
    if (slot >= 0)
      refuseTwins(slot, id, bytes);
    slot = id;
  };
  if (file.kind == TokenizerKind::SentencePieceBpe && file.types[index] == TokenType::Unused)
    hasUnused = true;
  if (file.kind == TokenizerKind::ByteLevelBpe) {
    if (bytes.size() == 1)
      take(byteIds[static_cast<std::uint8_t>(bytes[0])]);
  } else if (file.types[index] == TokenType::Byte && file.text(index).size() == 1) {
    take(byteIds[static_cast<std::uint8_t>(file.text(index)[0])]);
  } else if (const Utf8Step step = readUtf8(bytes.empty() ? std::string_view(" ") : bytes);
             step.valid && step.length == bytes.size()) {
    if (step.codePoint >= characterIds.size())
      characterIds.resize(std::size_t{step.codePoint} + 1, -1);
    take(characterIds[step.codePoint]);
  }
  if (file.ignoreMerges)
    if (const auto [found, added] = whole.emplace(bytes, id); !added)
      refuseTwins(found->second, id, bytes);
}

void BpeModel::addMerges(const VocabFile &file) {
  std::size_t capacity = 16;
  while (capacity < file.merges.size() * 2)
    capacity *= 2;
  table.assign(capacity, {0, 0, -1});
  for (const Merge &merge : file.merges) {
    PairMerge &slot = table[slotOf(pairOf(merge.left, merge.right))];
    if (slot.result >= 0)
      throw VocabDamage("two of its merges join the tokens " + std::to_string(merge.left) + " and " +
                        std::to_string(merge.right));
    slot = {pairOf(merge.left, merge.right), merge.rank, merge.result};
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

/// Appends a symbol for `length` bytes at `begin`.
static void addSymbol(std::vector<BpeModel::Symbol> &symbols, std::int32_t id, std::size_t begin, std::size_t length) {
  const auto index = static_cast<std::uint32_t>(symbols.size());
  symbols.push_back({id, index - 1, index + 1, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(length)});
}

/// One symbol per byte. A byte without a token is the unknown token, or nothing at all where there is none: its
/// neighbours then meet, as in the reference.
void BpeModel::fillBytes(std::string_view piece, Scratch &scratch) const {
  bool afterUnknown = false;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const std::int32_t known = byteIds[static_cast<std::uint8_t>(piece[i])];
    const std::int32_t id = known >= 0 ? known : vocab.unknown;
    const bool fused = known < 0 && vocab.fuseUnknown && afterUnknown;
    afterUnknown = known < 0;
    if (id >= 0 && !fused)
      addSymbol(scratch.symbols, id, i, 1);
  }
}

/// One symbol per character, as `tokenizers` does it: bytes in its place where all of them have tokens; else the
/// unknown token, which is put down late (after bytes that follow it).
void BpeModel::fillCharacters(std::string_view piece, Scratch &scratch) const {
  bool unknownPending = false;
  const auto putPending = [&] {
    if (unknownPending)
      addSymbol(scratch.symbols, vocab.unknown, 0, 0);
    unknownPending = false;
  };
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Step step = readUtf8(piece.substr(i, 4));
    const std::string_view bytes = piece.substr(i, step.length);
    const std::int32_t known = step.valid ? characterId(step.codePoint) : -1;
    const auto hasByte = [&](char c) { return byteIds[static_cast<std::uint8_t>(c)] >= 0; };
    if (known >= 0) {
      putPending();
      addSymbol(scratch.symbols, known, i, step.length);
    } else if (vocab.byteFallback && std::all_of(bytes.begin(), bytes.end(), hasByte)) {
      for (const char c : bytes)
        addSymbol(scratch.symbols, byteIds[static_cast<std::uint8_t>(c)], i, 1);
    } else if (vocab.unknown >= 0) {
      if (!vocab.fuseUnknown)
        putPending();
      unknownPending = true;
    }
    i += step.length;
  }
  putPending();
}

/// User-defined symbols and characters.
void BpeModel::fillSentencePiece(std::string_view piece, Scratch &scratch) const {
  for (std::size_t i = 0; i < piece.size();) {
    const Trie::Match symbol = userDefined.empty() ? Trie::Match() : userDefined.longestAt(piece, i);
    if (symbol.value >= 0) {
      addSymbol(scratch.symbols, symbol.value, i, symbol.length);
      i += symbol.length;
      continue;
    }
    const Utf8Step step = readUtf8(piece.substr(i, 4));
    const std::int32_t known = step.valid ? characterId(step.codePoint) : -1;
    addSymbol(scratch.symbols, known >= 0 ? known : unknownCharacter, i, step.length);
    i += step.length;
  }
}

void BpeModel::propose(Scratch &scratch, std::uint32_t left, std::uint32_t right) const {
  if (left == none || right == none)
    return;
  const std::int32_t leftId = scratch.symbols[left].id, rightId = scratch.symbols[right].id;
  const PairMerge *merge = findMerge(leftId, rightId);
  if (!merge)
    return;
  scratch.heap.push_back({merge->rank, left, merge->result});
  if (hasUnused && vocab.types[static_cast<std::size_t>(merge->result)] == TokenType::Unused)
    scratch.unusedParts[merge->result] = {leftId, rightId};
}

void BpeModel::mergeAll(Scratch &scratch) const {
  auto &symbols = scratch.symbols;
  auto &heap = scratch.heap;
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
    Symbol &left = symbols[best.position];
    if (left.id == gone || left.next == none)
      continue;
    Symbol &right = symbols[left.next];
    const PairMerge *merge = findMerge(left.id, right.id);
    if (!merge || merge->result != best.result)
      continue; // one of the two was merged with another symbol meanwhile
    left.id = best.result;
    left.next = right.next;
    right.id = gone;
    if (left.next != none)
      symbols[left.next].previous = best.position;
    proposeAndSift(left.previous, best.position);
    proposeAndSift(best.position, left.next);
  }
}

/// An unused token's parts, those of unused parts again, or the token itself if it was never merged.
void BpeModel::collectUsed(std::int32_t id, Scratch &scratch, std::vector<std::int32_t> &out) const {
  scratch.pending.assign(1, id);
  while (!scratch.pending.empty()) {
    const std::int32_t next = scratch.pending.back();
    scratch.pending.pop_back();
    const bool unused = vocab.types[static_cast<std::size_t>(next)] == TokenType::Unused;
    const auto parts = unused ? scratch.unusedParts.find(next) : scratch.unusedParts.end();
    if (parts == scratch.unusedParts.end()) {
      out.push_back(next);
      continue;
    }
    scratch.pending.push_back(parts->second[1]);
    scratch.pending.push_back(parts->second[0]);
  }
}

void BpeModel::collect(std::string_view piece, Scratch &scratch, std::vector<std::int32_t> &out) const {
  bool afterUnknown = false;
  for (const Symbol &symbol : scratch.symbols) {
    if (symbol.id == gone)
      continue;
    if (symbol.id >= 0) {
      if (hasUnused)
        collectUsed(symbol.id, scratch, out);
      else
        out.push_back(symbol.id);
      afterUnknown = false;
      continue;
    }
    if (vocab.byteFallback) {
      for (const char c : piece.substr(symbol.begin, symbol.length))
        if (const std::int32_t id = byteIds[static_cast<std::uint8_t>(c)]; id >= 0)
          out.push_back(id);
    } else if (!afterUnknown) {
      out.push_back(vocab.unknown);
    }
    afterUnknown = true;
  }
}

void BpeModel::encode(std::string_view piece, Scratch &scratch, std::vector<std::int32_t> &out) const {
  if (!whole.empty()) {
    if (const auto found = whole.find(piece); found != whole.end()) {
      out.push_back(found->second);
      return;
    }
  }
  scratch.symbols.clear();
  if (vocab.kind == TokenizerKind::ByteLevelBpe)
    fillBytes(piece, scratch);
  else if (vocab.kind == TokenizerKind::CharacterBpe)
    fillCharacters(piece, scratch);
  else
    fillSentencePiece(piece, scratch);
  if (scratch.symbols.empty())
    return;
  scratch.symbols.back().next = none;
  scratch.unusedParts.clear();
  mergeAll(scratch);
  collect(piece, scratch, out);
}
