//===- TextPatterns.cpp - The regexes of pre-tokenizers -------------------===//
//
// The patterns are matched by hand, one alternative after the other as the regex has them. Each match reads every
// character of its piece a bounded number of times, so that a megabyte of spaces costs what a megabyte of prose does.
// In what follows L, N, S, M, P and Y stand for \p{L}, \p{N}, \s, \p{M}, \p{P} and \p{S}.
//
//===----------------------------------------------------------------------===//

#include "TextPatterns.h"
#include "UnicodeClasses.h"

#include <limits>

using namespace buddy;

namespace {

constexpr std::uint32_t letterNumberSpace = UnicodeLetter | UnicodeNumber | UnicodeSpace;
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

bool isNewline(char32_t c) { return c == '\r' || c == '\n'; }

/// The end of the longest run from `begin` of characters whose classes meet (or, if not `included`, miss) `bits`.
std::size_t runEnd(std::string_view text, std::size_t begin, std::uint32_t bits, bool included,
                   std::size_t limit = unlimited) {
  std::size_t end = begin;
  for (std::size_t n = 0; n < limit && end < text.size(); ++n) {
    const ClassifiedChar c = classifyNext(text, end);
    if (c.is(bits) != included)
      break;
    end += c.length;
  }
  return end;
}

/// 's|'t|'re|'ve|'m|'ll|'d at `begin`, or `begin` itself. (?i:) also takes the long s, U+017F, for an s.
std::size_t contractionEnd(std::string_view text, std::size_t begin, bool ignoreCase) {
  if (text[begin] != '\'')
    return begin;
  const auto lower = [&](std::size_t i) -> char {
    const char c = i < text.size() ? text[i] : '\0';
    return ignoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(begin + 1);
  const char second = lower(begin + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd')
    return begin + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return begin + 3;
  if (ignoreCase && text.substr(begin + 1, 2) == "\xc5\xbf")
    return begin + 3;
  return begin;
}

/// \s+(?!\S)|\s+ at a space: the run of S, but for its last character when something else follows and something stays.
std::size_t spacesEnd(std::string_view text, std::size_t begin) {
  const std::size_t end = runEnd(text, begin, UnicodeSpace, true);
  if (end == text.size())
    return end;
  const std::size_t shorter = end - classifyPrevious(text, end).length;
  return shorter > begin ? shorter : end;
}

/// 's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?[^SLN]+|\s+(?!\S)|\s+
std::size_t gpt2End(std::string_view text, std::size_t begin) {
  if (const std::size_t end = contractionEnd(text, begin, false); end > begin)
    return end;
  const std::size_t start = text[begin] == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
  const ClassifiedChar c = classifyNext(text, start);
  if (c.is(UnicodeSpace))
    return spacesEnd(text, begin);
  for (const std::uint32_t bits : {UnicodeLetter, UnicodeNumber})
    if (c.is(bits))
      return runEnd(text, start, bits, true);
  return runEnd(text, start, letterNumberSpace, false);
}

/// \s*[\r\n]+ at a space: up to the last newline of the run of S, or `begin` if it has none.
std::size_t newlinesEnd(std::string_view text, std::size_t begin) {
  std::size_t lastNewline = begin;
  for (std::size_t i = begin; i < text.size();) {
    const ClassifiedChar c = classifyNext(text, i);
    if (!c.is(UnicodeSpace))
      break;
    i += c.length;
    if (isNewline(c.codePoint))
      lastNewline = i;
  }
  return lastNewline;
}

/// \s*[\r\n]+|\s+(?!\S)|\s+ at a space.
std::size_t blankEnd(std::string_view text, std::size_t begin) {
  if (const std::size_t end = newlinesEnd(text, begin); end > begin)
    return end;
  return spacesEnd(text, begin);
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nLN]?L+|N{1,maxDigits}| ?[^SLN]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
std::size_t llama3End(std::string_view text, std::size_t begin, std::size_t maxDigits) {
  if (const std::size_t end = contractionEnd(text, begin, true); end > begin)
    return end;
  const ClassifiedChar first = classifyNext(text, begin);
  if (first.is(UnicodeLetter))
    return runEnd(text, begin, UnicodeLetter, true);
  if (first.is(UnicodeNumber))
    return runEnd(text, begin, UnicodeNumber, true, maxDigits);

  const std::size_t next = begin + first.length;
  const bool hasNext = next < text.size();
  const ClassifiedChar second = hasNext ? classifyNext(text, next) : first;
  if (hasNext && !isNewline(first.codePoint) && second.is(UnicodeLetter))
    return runEnd(text, next, UnicodeLetter, true);

  const bool symbolAfterSpace = first.codePoint == ' ' && hasNext && !second.is(letterNumberSpace);
  if (symbolAfterSpace || !first.is(UnicodeSpace)) {
    std::size_t end = runEnd(text, symbolAfterSpace ? next : begin, letterNumberSpace, false);
    while (end < text.size() && isNewline(static_cast<unsigned char>(text[end])))
      ++end;
    return end;
  }
  return blankEnd(text, begin);
}

/// [Lu Lt Lm Lo M]
bool isUpperPart(const ClassifiedChar &c) {
  return c.is(UnicodeMark | UnicodeUpper) || (c.is(UnicodeLetter) && !c.is(UnicodeLower));
}
/// [Ll Lm Lo M]
bool isLowerPart(const ClassifiedChar &c) { return c.is(UnicodeMark) || (c.is(UnicodeLetter) && !c.is(UnicodeUpper)); }

template <typename Predicate> std::size_t runWhile(std::string_view text, std::size_t begin, Predicate holds) {
  while (begin < text.size()) {
    const ClassifiedChar c = classifyNext(text, begin);
    if (!holds(c))
      break;
    begin += c.length;
  }
  return begin;
}

/// [Lu Lt Lm Lo M]*[Ll Lm Lo M]+ at `begin`, or `begin` where it does not match. `*upperEnd` is where the first part
/// ends by itself.
std::size_t capitalisedEnd(std::string_view text, std::size_t begin, std::size_t *upperEnd) {
  std::size_t end = begin, lastShared = begin; // behind the last character that either part may hold
  while (end < text.size()) {
    const ClassifiedChar c = classifyNext(text, end);
    if (!isUpperPart(c))
      break;
    end += c.length;
    if (isLowerPart(c))
      lastShared = end;
  }
  *upperEnd = end;
  const std::size_t lower = runWhile(text, end, isLowerPart);
  return lower > end ? lower : lastShared;
}

/// The letters of o200k's first two alternatives, behind [^\r\nLN]? or not; `begin` where there are none:
/// [^\r\nLN]?[Lu Lt Lm Lo M]*[Ll Lm Lo M]+ | [^\r\nLN]?[Lu Lt Lm Lo M]+[Ll Lm Lo M]*
std::size_t casedWordEnd(std::string_view text, std::size_t begin, const ClassifiedChar &first) {
  const bool mayPrefix = !isNewline(first.codePoint) && !first.is(UnicodeLetter | UnicodeNumber);
  const std::size_t next = begin + first.length;
  std::size_t upperWithPrefix = next, upper = begin;
  if (mayPrefix)
    if (const std::size_t end = capitalisedEnd(text, next, &upperWithPrefix); end > next)
      return end;
  if (first.is(UnicodeLetter | UnicodeMark))
    if (const std::size_t end = capitalisedEnd(text, begin, &upper); end > begin)
      return end;
  if (mayPrefix && upperWithPrefix > next)
    return upperWithPrefix;
  return upper;
}

/// casedWordEnd and, if `contracts`, (?i:'s|'t|'re|'ve|'m|'ll|'d)? | N{1,maxDigits} | ?[^SLN]+[\r\n/]*
/// | \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t o200kEnd(std::string_view text, std::size_t begin, std::size_t maxDigits, bool contracts) {
  const ClassifiedChar first = classifyNext(text, begin);
  if (const std::size_t end = casedWordEnd(text, begin, first); end > begin)
    return contracts && end < text.size() ? contractionEnd(text, end, true) : end;
  if (first.is(UnicodeNumber))
    return runEnd(text, begin, UnicodeNumber, true, maxDigits);
  const std::size_t next = begin + first.length;
  const bool symbolAfterSpace =
      first.codePoint == ' ' && next < text.size() && !classifyNext(text, next).is(letterNumberSpace);
  if (!symbolAfterSpace && first.is(UnicodeSpace))
    return blankEnd(text, begin);
  std::size_t end = runEnd(text, symbolAfterSpace ? next : begin, letterNumberSpace, false);
  while (end < text.size() && (isNewline(static_cast<unsigned char>(text[end])) || text[end] == '/'))
    ++end;
  return end;
}

bool isAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// The match at `begin`, or `begin`. In ASCII, punctuation stands for !"#$%&'()*+,-./:;<=>?@[\]^_`{|}~:
/// punctuation[A-Za-z]+ | [^\r\nLPY]?[LM]+ | ?[PY]+[\r\n]* | \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t deepSeekMatchEnd(std::string_view text, std::size_t begin) {
  const ClassifiedChar first = classifyNext(text, begin);
  const std::size_t next = begin + first.length;
  const bool hasNext = next < text.size();
  const bool symbol = first.is(UnicodePunctuation | UnicodeSymbol);
  if (symbol && first.codePoint < 0x80 && hasNext && isAsciiLetter(text[next])) {
    std::size_t end = next;
    while (end < text.size() && isAsciiLetter(text[end]))
      ++end;
    return end;
  }
  if (first.is(UnicodeLetter | UnicodeMark))
    return runEnd(text, begin, UnicodeLetter | UnicodeMark, true);
  const ClassifiedChar second = hasNext ? classifyNext(text, next) : ClassifiedChar{0, 0, 0};
  if (!symbol && !isNewline(first.codePoint) && second.is(UnicodeLetter | UnicodeMark))
    return runEnd(text, next, UnicodeLetter | UnicodeMark, true);
  const bool symbolAfterSpace = first.codePoint == ' ' && second.is(UnicodePunctuation | UnicodeSymbol);
  if (symbol || symbolAfterSpace) {
    std::size_t end = runEnd(text, symbol ? begin : next, UnicodePunctuation | UnicodeSymbol, true);
    while (end < text.size() && isNewline(static_cast<unsigned char>(text[end])))
      ++end;
    return end;
  }
  return first.is(UnicodeSpace) ? blankEnd(text, begin) : begin;
}

/// A match, or all that lies before the next one. Where nothing matches, that shows after two characters.
std::size_t deepSeekEnd(std::string_view text, std::size_t begin) {
  if (const std::size_t end = deepSeekMatchEnd(text, begin); end > begin)
    return end;
  std::size_t end = begin;
  do
    end += classifyNext(text, end).length;
  while (end < text.size() && deepSeekMatchEnd(text, end) == end);
  return end;
}

/// [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]
bool isCjk(const ClassifiedChar &c) {
  return (c.codePoint >= 0x4e00 && c.codePoint <= 0x9fa5) || (c.codePoint >= 0x3040 && c.codePoint <= 0x30ff);
}

/// isCjk+, or what lies before.
std::size_t cjkEnd(std::string_view text, std::size_t begin) {
  const bool inside = isCjk(classifyNext(text, begin));
  return runWhile(text, begin, [&](const ClassifiedChar &c) { return isCjk(c) == inside; });
}

/// N{1,3}, or what lies before.
std::size_t numbersEnd(std::string_view text, std::size_t begin) {
  const bool isNumber = classifyNext(text, begin).is(UnicodeNumber);
  return runEnd(text, begin, UnicodeNumber, isNumber, isNumber ? 3 : unlimited);
}

} // namespace

std::size_t buddy::patternEnd(SplitPattern pattern, std::string_view text, std::size_t begin) {
  switch (pattern) {
  case SplitPattern::Gpt2:
    return gpt2End(text, begin);
  case SplitPattern::Llama3:
    return llama3End(text, begin, 3);
  case SplitPattern::Qwen2:
    return llama3End(text, begin, 1);
  case SplitPattern::NumbersUpTo3:
    return numbersEnd(text, begin);
  case SplitPattern::O200k:
    return o200kEnd(text, begin, 3, true);
  case SplitPattern::Tekken:
    return o200kEnd(text, begin, 1, false);
  case SplitPattern::CjkRuns:
    return cjkEnd(text, begin);
  case SplitPattern::DeepSeekV3:
    return deepSeekEnd(text, begin);
  }
  return text.size();
}

std::size_t buddy::digitsEnd(std::string_view text, std::size_t begin, bool individually) {
  const bool isDigit = classifyNext(text, begin).is(UnicodeNumeric);
  return runEnd(text, begin, UnicodeNumeric, isDigit, isDigit && individually ? 1 : unlimited);
}
