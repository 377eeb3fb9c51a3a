//===- TextWordPiece.h - BERT's WordPiece ---------------------------------===//

#ifndef BUDDY_TEXTWORDPIECE_H
#define BUDDY_TEXTWORDPIECE_H

#include "TextTrie.h"
#include "VocabFile.h"

#include <string_view>
#include <vector>

namespace buddy {

/// Cuts a word into the longest tokens, from left to right; a word that can't be cut is unknown as a whole.
class WordPieceModel {
public:
  explicit WordPieceModel(const VocabFile &file);

  void encode(std::string_view word, std::vector<std::int32_t> &out) const;

private:
  const VocabFile &vocab;
  Trie beginnings, continuations;
};

} // namespace buddy

#endif // BUDDY_TEXTWORDPIECE_H
