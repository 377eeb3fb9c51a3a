//===- TextPreTokenizer.cpp - Cutting text into pre-tokens ----------------===//
//
// The patterns are matched by hand, one alternative after the other as the regex has them. Each match reads every
// character of its piece a bounded number of times, so that a megabyte of spaces costs what a megabyte of prose does.
// In what follows L, N and S stand for \p{L}, \p{N} and \s.
//
//===----------------------------------------------------------------------===//

#include "TextPreTokenizer.h"
#include "UnicodeClasses.h"

#include <cstddef>
#include <limits>
#include <utility>

using namespace buddy;

namespace {

constexpr std::uint8_t letterNumberSpace = UnicodeLetter | UnicodeNumber | UnicodeSpace;
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

bool isNewline(char32_t c) { return c == '\r' || c == '\n'; }

/// The end of the longest run from `begin` of characters whose classes meet (or, if not `included`, miss) `bits`.
std::size_t runEnd(std::string_view text, std::size_t begin, std::uint8_t bits, bool included,
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
  for (const std::uint8_t bits : {UnicodeLetter, UnicodeNumber})
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
  if (const std::size_t end = newlinesEnd(text, begin); end > begin)
    return end;
  return spacesEnd(text, begin);
}

/// The end of the piece that `pattern` cuts at `begin`, whether it matches there or is what lies before a match.
std::size_t patternEnd(SplitPattern pattern, std::string_view text, std::size_t begin) {
  switch (pattern) {
  case SplitPattern::Gpt2:
    return gpt2End(text, begin);
  case SplitPattern::Llama3:
    return llama3End(text, begin, 3);
  case SplitPattern::Qwen2:
    return llama3End(text, begin, 1);
  case SplitPattern::NumbersUpTo3:
    break;
  }
  const bool isNumber = classifyNext(text, begin).is(UnicodeNumber);
  return runEnd(text, begin, UnicodeNumber, isNumber, isNumber ? 3 : unlimited);
}

/// Digits: each one alone if `individually`, else in runs.
std::size_t digitsEnd(std::string_view text, std::size_t begin, bool individually) {
  const bool isDigit = classifyNext(text, begin).is(UnicodeNumeric);
  return runEnd(text, begin, UnicodeNumeric, isDigit, isDigit && individually ? 1 : unlimited);
}

} // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> inOrder) : steps(std::move(inOrder)) {}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view> &pieces,
                         std::deque<std::string> &storage) const {
  pieces.assign(text.empty() ? 0 : 1, text);
  std::vector<std::string_view> next;
  for (const PreTokenizerStep &step : steps) {
    next.clear();
    for (const std::string_view piece : pieces) {
      if (step.kind == StepKind::PrefixSpace) {
        next.push_back(piece.front() == ' ' ? piece : std::string_view(storage.emplace_back(" ").append(piece)));
        continue;
      }
      for (std::size_t begin = 0; begin < piece.size();) {
        const std::size_t end = step.kind == StepKind::Digits
                                    ? digitsEnd(piece, begin, step.argument == 1)
                                    : patternEnd(static_cast<SplitPattern>(step.argument), piece, begin);
        next.push_back(piece.substr(begin, end - begin));
        begin = end;
      }
    }
    pieces.swap(next);
  }
}
