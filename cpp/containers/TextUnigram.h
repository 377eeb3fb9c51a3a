//===- TextUnigram.h - SentencePiece's unigram model ----------------------===//

#ifndef BUDDY_TEXTUNIGRAM_H
#define BUDDY_TEXTUNIGRAM_H

#include "TextTrie.h"
#include "VocabFile.h"

#include <array>
#include <string_view>
#include <vector>

namespace buddy {

/// The most likely way to cut normalised text into pieces. O(n) for n bytes and pieces of bounded length.
class UnigramModel {
public:
  explicit UnigramModel(const VocabFile &file);

  void encode(std::string_view text, std::vector<std::int32_t> &out) const;

private:
  float scoreOf(std::int32_t id, std::size_t length) const;
  void emit(std::string_view text, const std::vector<std::pair<std::int32_t, std::size_t>> &backwards,
            std::vector<std::int32_t> &out) const;

  const VocabFile &vocab;
  Trie pieces;
  std::array<std::int32_t, 256> byteIds;
  float unknownScore = 0;
};

} // namespace buddy

#endif // BUDDY_TEXTUNIGRAM_H
