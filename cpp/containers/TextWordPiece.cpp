//===- TextWordPiece.cpp - BERT's WordPiece -------------------------------===//

#include "TextWordPiece.h"
#include "UnicodeClasses.h"

#include <string>

using namespace buddy;

WordPieceModel::WordPieceModel(const VocabFile &file) : vocab(file) {
  if (vocab.kind != TokenizerKind::WordPiece)
    return;
  const std::string_view prefix = vocab.continuingPrefix;
  for (std::size_t i = 0; i < vocab.tokenCount(); ++i) {
    const std::string_view token = vocab.token(i);
    if (!(vocab.flags[i] & TokenIsInModel) || token.empty())
      continue;
    const auto id = static_cast<std::int32_t>(i);
    if (const std::int32_t there = beginnings.insert(token, id); there != id)
      throw VocabDamage("two of its tokens, " + std::to_string(there) + " and " + std::to_string(id) + ", are both " +
                        quotedToken(token));
    if (token.size() > prefix.size() && token.substr(0, prefix.size()) == prefix)
      continuations.insert(token.substr(prefix.size()), id);
  }
}

void WordPieceModel::encode(std::string_view word, std::vector<std::int32_t> &out) const {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < word.size() && characters <= vocab.maxWordChars; ++characters)
    i += classifyNext(word, i).length;
  const std::size_t before = out.size();
  bool cut = characters <= vocab.maxWordChars;
  for (std::size_t begin = 0; cut && begin < word.size();) {
    const Trie::Match longest = (begin == 0 ? beginnings : continuations).longestAt(word, begin);
    cut = longest.value >= 0;
    out.push_back(longest.value);
    begin += longest.length;
  }
  if (!cut) {
    out.resize(before);
    out.push_back(vocab.unknown);
  }
}
