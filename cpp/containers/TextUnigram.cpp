//===- TextUnigram.cpp - SentencePiece's unigram model --------------------===//
//
// Sums are float as in the reference, so that ties and near-ties fall the same way.
//
//===----------------------------------------------------------------------===//

#include "TextUnigram.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

using namespace buddy;

namespace {

constexpr float unknownPenalty = 10;
constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();

/// The best way to a place in the text: the piece that ends there and where it begins.
struct Best {
  float score = 0;
  std::int32_t id = -1;
  std::size_t begin = nowhere;

  void offer(float other, std::int32_t piece, std::size_t from) {
    if (begin == nowhere || other > score) {
      score = other;
      id = piece;
      begin = from;
    }
  }
};

std::size_t characterLength(char lead) {
  const auto byte = static_cast<std::uint8_t>(lead);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

} // namespace

UnigramModel::UnigramModel(const VocabFile &file) : vocab(file) {
  byteIds.fill(-1);
  if (vocab.kind != TokenizerKind::SentencePieceUnigram)
    return;
  float lowest = std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < vocab.tokenCount(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (vocab.types[i] == TokenType::Byte && vocab.text(i).size() == 1)
      byteIds[static_cast<std::uint8_t>(vocab.text(i)[0])] = id;
    if (vocab.types[i] == TokenType::Normal)
      lowest = std::min(lowest, vocab.scores[i]);
    if (!(vocab.flags[i] & TokenIsInModel) || vocab.types[i] == TokenType::Byte || vocab.token(i).empty())
      continue;
    if (const std::int32_t there = pieces.insert(vocab.token(i), id); there != id)
      throw VocabDamage("two of its tokens, " + std::to_string(there) + " and " + std::to_string(id) + ", are both " +
                        quotedToken(vocab.token(i)));
  }
  unknownScore = lowest - unknownPenalty;
}

float UnigramModel::scoreOf(std::int32_t id, std::size_t length) const {
  const auto index = static_cast<std::size_t>(id);
  if (vocab.types[index] == TokenType::UserDefined) // a bonus, so that it is always taken
    return static_cast<float>(0.1 * (static_cast<double>(length) - 1));
  return vocab.scores[index];
}

void UnigramModel::encode(std::string_view text, std::vector<std::int32_t> &out) const {
  std::vector<Best> ends(text.size() + 1);
  for (std::size_t begin = 0; begin < text.size();) {
    const float before = ends[begin].score;
    const std::size_t character = std::min(characterLength(text[begin]), text.size() - begin);
    bool hasCharacter = false;
    Trie::Node node = Trie::root;
    for (std::size_t end = begin; end < text.size();) {
      node = pieces.step(node, text[end++]);
      if (node == Trie::nowhere)
        break;
      const std::int32_t id = pieces.value(node);
      if (id < 0 || vocab.types[static_cast<std::size_t>(id)] == TokenType::Unused)
        continue;
      const std::size_t length = end - begin;
      ends[end].offer(scoreOf(id, length) + before, id, begin);
      hasCharacter = hasCharacter || length == character;
    }
    if (!hasCharacter)
      ends[begin + character].offer(unknownScore + before, vocab.unknown, begin);
    begin += character;
  }
  std::vector<std::pair<std::int32_t, std::size_t>> backwards;
  for (std::size_t end = text.size(); end > 0; end = ends[end].begin)
    backwards.emplace_back(ends[end].id, end);
  emit(text, backwards, out);
}

void UnigramModel::emit(std::string_view text, const std::vector<std::pair<std::int32_t, std::size_t>> &backwards,
                        std::vector<std::int32_t> &out) const {
  std::size_t begin = 0;
  bool afterUnknown = false;
  for (auto piece = backwards.rbegin(); piece != backwards.rend(); ++piece) {
    const bool unknown = piece->first == vocab.unknown;
    if (!unknown) {
      out.push_back(piece->first);
    } else if (vocab.byteFallback) {
      for (const char c : text.substr(begin, piece->second - begin))
        if (const std::int32_t id = byteIds[static_cast<std::uint8_t>(c)]; id >= 0)
          out.push_back(id);
    } else if (!afterUnknown) {
      out.push_back(vocab.unknown);
    }
    afterUnknown = unknown;
    begin = piece->second;
  }
}
