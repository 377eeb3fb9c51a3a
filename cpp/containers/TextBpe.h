//===- TextBpe.h - Byte pair encoding -------------------------------------===//

#ifndef BUDDY_TEXTBPE_H
#define BUDDY_TEXTBPE_H

#include "TextTrie.h"
#include "VocabFile.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace buddy {

/// Turns a pre-token into tokens: its bytes or characters, joined pair by pair, the strongest merge first and of equal
/// ones the leftmost. O(n log n) for n bytes.
class BpeModel {
public:
  /// `symbols` are found as a whole and merge with nothing. Throws VocabDamage naming the token when two tokens have
  /// the same spelling. Keeps both.
  BpeModel(const VocabFile &file, const Trie &symbols);

  struct Symbol {
    std::int32_t id; // or gone, or an unknown character
    std::uint32_t previous, next;
    std::uint32_t begin, length; // where it stood in the pre-token
  };

  /// Memory that encode reuses from one pre-token to the next. One per thread.
  class Scratch {
    friend class BpeModel;
    struct Candidate {
      std::uint32_t rank, position;
      std::int32_t result;
      bool operator>(const Candidate &other) const {
        return rank != other.rank ? rank > other.rank : position > other.position;
      }
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::unordered_map<std::int32_t, std::array<std::int32_t, 2>> unusedParts;
    std::vector<std::int32_t> pending;
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

  void addToken(const VocabFile &file, std::int32_t id);
  void addMerges(const VocabFile &file);
  void fillBytes(std::string_view piece, Scratch &scratch) const;
  void fillCharacters(std::string_view piece, Scratch &scratch) const;
  void fillSentencePiece(std::string_view piece, Scratch &scratch) const;
  void propose(Scratch &scratch, std::uint32_t left, std::uint32_t right) const;
  void mergeAll(Scratch &scratch) const;
  void collect(std::string_view piece, Scratch &scratch, std::vector<std::int32_t> &out) const;
  void collectUsed(std::int32_t id, Scratch &scratch, std::vector<std::int32_t> &out) const;
  std::int32_t characterId(char32_t codePoint) const {
    return codePoint < characterIds.size() ? characterIds[codePoint] : -1;
  }

  const VocabFile &vocab;
  const Trie &userDefined;
  std::vector<PairMerge> table;
  std::array<std::int32_t, 256> byteIds; // -1: the vocabulary has no such token
  std::vector<std::int32_t> characterIds;
  std::unordered_map<std::string_view, std::int32_t> whole;
  bool hasUnused = false;
};

} // namespace buddy

#endif // BUDDY_TEXTBPE_H
