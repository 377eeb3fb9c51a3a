//===- TextSentencePiece.cpp - SentencePiece's own normaliser -------------===//

#include "TextSentencePiece.h"
#include "UnicodeClasses.h"

#include <algorithm>

using namespace buddy;

namespace {

constexpr std::string_view visibleSpace = "\xe2\x96\x81"; // U+2581

/// A unit of a double array (Darts): where its children are, the byte that leads to it, whether a text ends here.
struct Unit {
  std::uint32_t bits;
  std::size_t offset() const { return std::size_t{bits >> 10} << ((bits & (1U << 9)) >> 6); }
  std::uint32_t label() const { return bits & ((1U << 31) | 0xffU); }
  bool hasValue() const { return bits >> 8 & 1; }
  std::size_t value() const { return bits & ((1U << 31) - 1); }
};

} // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const VocabFile &vocab) : rules(vocab.rules) {
  if (vocab.kind != TokenizerKind::SentencePieceBpe && vocab.kind != TokenizerKind::SentencePieceUnigram)
    return;
  for (std::size_t id = 0; id < vocab.tokenCount(); ++id)
    if (vocab.types[id] == TokenType::UserDefined && !vocab.token(id).empty())
      userDefined.insert(vocab.token(id), static_cast<std::int32_t>(id));
}

/// The longest rule of the charsmap that `text` begins with; a length of 0: none.
SentencePieceNormalizer::Prefix SentencePieceNormalizer::mappedPrefixOf(std::string_view text) const {
  const std::vector<std::uint32_t> &units = rules.charsmapUnits;
  Prefix longest{{}, 0};
  if (units.empty())
    return longest;
  std::size_t position = Unit{units[0]}.offset();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    position ^= byte;
    if (position >= units.size() || Unit{units[position]}.label() != byte)
      break;
    const Unit unit{units[position]};
    position ^= unit.offset();
    if (!unit.hasValue() || position >= units.size())
      continue;
    const std::size_t value = Unit{units[position]}.value();
    if (value < rules.charsmapTexts.size())
      longest = {rules.charsmapTexts.c_str() + value, i + 1};
  }
  return longest;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::prefixOf(std::string_view text) const {
  if (!userDefined.empty())
    if (const Trie::Match symbol = userDefined.longestAt(text, 0); symbol.value >= 0)
      return {text.substr(0, symbol.length), symbol.length};
  if (const Prefix mapped = mappedPrefixOf(text); mapped.length > 0)
    return mapped;
  const Utf8Step step = readUtf8(text.substr(0, 4));
  if (!step.valid)
    return {"\xef\xbf\xbd", 1};
  return {text.substr(0, step.length), step.length};
}

std::string SentencePieceNormalizer::apply(std::string_view text) const {
  std::string out;
  while (rules.removeExtraSpaces && !text.empty()) {
    const Prefix prefix = prefixOf(text);
    if (prefix.text != " ")
      break;
    text.remove_prefix(prefix.length);
  }
  if (text.empty())
    return out;

  const std::string_view space = rules.escapeSpaces ? visibleSpace : std::string_view(" ");
  out.reserve(text.size() + text.size() / 2);
  if (rules.addDummyPrefix && !rules.spaceAsSuffix)
    out += space;
  bool afterSpace = rules.removeExtraSpaces;
  while (!text.empty()) {
    const Prefix prefix = prefixOf(text);
    std::string_view next = prefix.text;
    while (afterSpace && !next.empty() && next.front() == ' ')
      next.remove_prefix(1);
    for (const char c : next) {
      if (c == ' ')
        out += space;
      else
        out += c;
    }
    if (!next.empty())
      afterSpace = rules.removeExtraSpaces && next.back() == ' ';
    text.remove_prefix(prefix.length);
  }
  while (rules.removeExtraSpaces && out.size() >= space.size() &&
         std::string_view(out).substr(out.size() - space.size()) == space)
    out.resize(out.size() - space.size());
  if (rules.addDummyPrefix && rules.spaceAsSuffix)
    out += space;
  return out;
}
