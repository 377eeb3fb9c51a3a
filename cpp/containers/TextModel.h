//===- TextModel.h - What a loaded tokenizer consists of ------------------===//

#ifndef BUDDY_TEXTMODEL_H
#define BUDDY_TEXTMODEL_H

#include "TextAdded.h"
#include "TextBpe.h"
#include "TextNormalizer.h"
#include "TextPreTokenizer.h"
#include "TextSentencePiece.h"
#include "TextUnigram.h"
#include "TextWordPiece.h"
#include "VocabFile.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

/// Immutable after construction. The parts hold views of `vocab`, so it stays where it is.
struct TextModel {
  explicit TextModel(VocabFile file);
  TextModel(const TextModel &) = delete;
  TextModel &operator=(const TextModel &) = delete;

  std::vector<std::int32_t> encode(std::string_view text, const std::vector<Stretch> &stretches, bool addSpecial) const;
  std::string_view bytes(std::int32_t id) const;
  bool isSpecial(std::int32_t id) const;
  bool isInVocabulary(std::int32_t id) const { return id >= 0 && static_cast<std::size_t>(id) < vocab.tokenCount(); }

  VocabFile vocab;
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer preTokenizer;
  SentencePieceNormalizer sentencePiece;
  BpeModel bpe;
  UnigramModel unigram;
  WordPieceModel wordPiece;
};

} // namespace buddy

#endif // BUDDY_TEXTMODEL_H
