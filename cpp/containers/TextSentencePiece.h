//===- TextSentencePiece.h - SentencePiece's own normaliser ---------------===//

#ifndef BUDDY_TEXTSENTENCEPIECE_H
#define BUDDY_TEXTSENTENCEPIECE_H

#include "TextTrie.h"
#include "VocabFile.h"

#include <string>
#include <string_view>

namespace buddy {

/// The charsmap that a model file carries, the rules of its spaces, and the symbols that it leaves alone.
class SentencePieceNormalizer {
public:
  explicit SentencePieceNormalizer(const VocabFile &vocab);

  /// Bytes that are not UTF-8 become U+FFFD, one by one.
  std::string apply(std::string_view text) const;

  /// User-defined symbols with their ids: no rule changes them, no merge reaches into them.
  const Trie &symbols() const { return userDefined; }

private:
  struct Prefix {
    std::string_view text; // what stands for the first `length` bytes
    std::size_t length;
  };
  Prefix prefixOf(std::string_view text) const;
  Prefix mappedPrefixOf(std::string_view text) const;

  const SentencePieceRules &rules;
  Trie userDefined;
};

} // namespace buddy

#endif // BUDDY_TEXTSENTENCEPIECE_H
