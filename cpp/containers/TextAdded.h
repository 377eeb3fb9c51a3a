//===- TextAdded.h - Finding added tokens in text -------------------------===//
//
// Added tokens (control and user-defined) are looked for in the text itself, before any pre-tokenizer: from left to
// right, the longest at each place. First those that are not normalised, then the others in what is left.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TEXTADDED_H
#define BUDDY_TEXTADDED_H

#include "VocabFile.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace buddy {

/// A stretch of the joined text: [previous end, end) parses special spellings or not.
struct Stretch {
  std::size_t end;
  bool parseSpecial;
};

/// A token, or (id = -1) text to be tokenised.
struct TextPart {
  std::size_t begin, end;
  std::int32_t id;
};

class AddedTokens {
public:
  /// Throws VocabDamage naming the token when two are spelled alike.
  explicit AddedTokens(const VocabFile &vocab);

  /// Cuts `text`, whose stretches end at text.size(), into tokens and text between them: those tokens that are looked
  /// for before the normalisers, and those that are looked for after them.
  std::vector<TextPart> split(std::string_view text, const std::vector<Stretch> &stretches) const;
  std::vector<TextPart> splitNormalized(std::string_view text, const std::vector<Stretch> &stretches) const;

  bool hasNormalized() const { return !normalized.entries.empty(); }

private:
  struct Entry {
    std::string_view spelling; // points into the VocabFile
    std::int32_t id;
    std::uint8_t flags;
    bool special;
  };
  /// Entries in the order of their spellings, with the range of each first byte.
  struct Set {
    std::vector<Entry> entries;
    std::array<std::uint32_t, 257> firstByte{};
  };
  class Allowed;

  static void index(Set &set);
  static const Entry *longestAt(const Set &set, std::string_view text, std::size_t position, Allowed &allowed);
  static std::vector<TextPart> find(const Set &set, std::string_view text, const std::vector<Stretch> &stretches);

  Set plain, normalized;
};

} // namespace buddy

#endif // BUDDY_TEXTADDED_H
