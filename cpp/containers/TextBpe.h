//===- TextBpe.h - Byte-level byte pair encoding --------------------------===//

#ifndef BUDDY_TEXTBPE_H
#define BUDDY_TEXTBPE_H

#include "VocabFile.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace buddy {

/// Turns a pre-token into tokens: its bytes, joined pair by pair, the earliest merge first and of equal ones the
/// leftmost. O(n log n) for n bytes.
class BpeModel {
public:
  /// Throws VocabDamage naming the token when two tokens have the same bytes. Keeps views of `vocab`.
  explicit BpeModel(const VocabFile &vocab);

  /// Memory that encode reuses from one pre-token to the next. One per thread.
  class Scratch {
    friend class BpeModel;
    struct Symbol {
      std::int32_t id; // -1: merged into the one to its left
      std::uint32_t previous, next;
    };
    struct Candidate {
      std::uint32_t rank, position;
      std::int32_t result;
      bool operator>(const Candidate &other) const {
        return rank != other.rank ? rank > other.rank : position > other.position;
      }
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  void encode(std::string_view piece, Scratch &scratch, std::vector<std::int32_t> &out) const;

private:
  /// What merging a pair gives; an open-addressing table from pair to this.
  struct PairMerge {
    std::uint64_t pair;
    std::uint32_t rank;
    std::int32_t result; // -1: an empty slot
  };
  static std::uint64_t pairOf(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slotOf(std::uint64_t pair) const;
  const PairMerge *findMerge(std::int32_t left, std::int32_t right) const;

  void fillSymbols(std::string_view piece, std::vector<Scratch::Symbol> &symbols) const;
  void propose(Scratch &scratch, std::uint32_t left, std::uint32_t right) const;

  std::vector<PairMerge> table;
  std::array<std::int32_t, 256> byteIds; // -1: the vocabulary has no such token
  std::unordered_map<std::string_view, std::int32_t> whole;
  std::int32_t unknown;
  bool fuseUnknown;
};

} // namespace buddy

#endif // BUDDY_TEXTBPE_H
