//===- TextPreTokenizer.cpp - Cutting text into pre-tokens ----------------===//

#include "TextPreTokenizer.h"
#include "TextPatterns.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <cstddef>
#include <functional>

using namespace buddy;

namespace {

using Pieces = std::vector<std::string_view>;

/// Puts down what a separator cuts a text into, as the behaviour has it. Matches come in order, and none is empty.
class Cutter {
public:
  Cutter(std::string_view whole, SplitBehavior how, Pieces &to) : text(whole), behavior(how), out(to) {}

  void match(std::size_t begin, std::size_t end) {
    if (begin > done)
      put(done, begin, false);
    put(begin, end, true);
    done = end;
  }
  void finish() {
    if (done < text.size())
      put(done, text.size(), false);
    flush();
  }

private:
  void put(std::size_t begin, std::size_t end, bool matched) {
    const bool joins = (behavior == SplitBehavior::WithPrevious && matched && !lastMatched) ||
                       (behavior == SplitBehavior::WithNext && !matched && lastMatched) ||
                       (behavior == SplitBehavior::Contiguous && matched == lastMatched);
    if (!joins)
      flush();
    if (!(behavior == SplitBehavior::Removed && matched))
      open = {open.second > open.first ? open.first : begin, end};
    lastMatched = matched;
  }
  void flush() {
    if (open.second > open.first)
      out.push_back(text.substr(open.first, open.second - open.first));
    open = {0, 0};
  }

  std::string_view text;
  SplitBehavior behavior;
  Pieces &out;
  std::size_t done = 0;
  std::pair<std::size_t, std::size_t> open{0, 0};
  bool lastMatched = false;
};

void cutAtText(std::string_view piece, std::string_view separator, SplitBehavior behavior, Pieces &out) {
  Cutter cutter(piece, behavior, out);
  std::size_t from = 0;
  for (std::size_t at; (at = piece.find(separator, from)) != std::string_view::npos; from = at + separator.size())
    cutter.match(at, at + separator.size());
  cutter.finish();
}

/// Cuts at each character of the classes in `bits`.
void cutAtClass(std::string_view piece, std::uint32_t bits, SplitBehavior behavior, Pieces &out) {
  Cutter cutter(piece, behavior, out);
  for (std::size_t i = 0; i < piece.size();) {
    const ClassifiedChar c = classifyNext(piece, i);
    if (c.is(bits))
      cutter.match(i, i + c.length);
    i += c.length;
  }
  cutter.finish();
}

/// \w+|[^\w\s]+
void cutIntoWords(std::string_view piece, Pieces &out) {
  const auto kindAt = [&](std::size_t i) {
    const ClassifiedChar c = classifyNext(piece, i);
    return c.is(UnicodeWord) ? 2 : c.is(UnicodeWhitespace) ? 0 : 1;
  };
  for (std::size_t begin = 0; begin < piece.size();) {
    const int kind = kindAt(begin);
    std::size_t end = begin;
    while (end < piece.size() && kindAt(end) == kind)
      end += classifyNext(piece, end).length;
    if (kind != 0)
      out.push_back(piece.substr(begin, end - begin));
    begin = end;
  }
}

void cutAtWhitespace(std::string_view piece, std::uint32_t how, Pieces &out) {
  if (how == 0)
    return cutIntoWords(piece, out);
  if (how == 1)
    return cutAtClass(piece, UnicodeWhitespace, SplitBehavior::Removed, out);
  Pieces words;
  cutAtClass(piece, UnicodeWhitespace, SplitBehavior::Removed, words);
  for (const std::string_view word : words)
    cutAtClass(word, UnicodeBertPunctuation, SplitBehavior::Isolated, out);
}

void cutAtMetaspace(std::string_view piece, const PreTokenizerStep &step, bool isFirst, Pieces &out,
                    std::deque<std::string> &storage) {
  std::string &replaced = storage.emplace_back();
  for (const char c : piece) {
    if (c == ' ')
      replaced += step.text;
    else
      replaced += c;
  }
  const bool wantsPrefix =
      (step.argument & MetaspacePrefixAlways) || ((step.argument & MetaspacePrefixFirst) && isFirst);
  if (wantsPrefix && std::string_view(replaced).substr(0, step.text.size()) != step.text)
    replaced.insert(0, step.text);
  if (step.argument & MetaspaceSplits)
    cutAtText(replaced, step.text, SplitBehavior::WithNext, out);
  else
    out.push_back(replaced);
}

template <typename EndOf> void cutAtEnds(std::string_view piece, Pieces &out, EndOf endOf) {
  for (std::size_t begin = 0; begin < piece.size();) {
    const std::size_t end = endOf(begin);
    out.push_back(piece.substr(begin, end - begin));
    begin = end;
  }
}

} // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> inOrder) : steps(std::move(inOrder)) {}

bool PreTokenizer::asksForFirst() const {
  return std::any_of(steps.begin(), steps.end(), [](const PreTokenizerStep &step) {
    return step.kind == StepKind::Metaspace && (step.argument & MetaspacePrefixFirst);
  });
}

void PreTokenizer::split(std::string_view text, std::size_t firstBytes, Pieces &pieces,
                         std::deque<std::string> &storage) const {
  const auto isFirst = [&](std::string_view piece) {
    const std::less<const char *> before;
    return !before(piece.data(), text.data()) && before(piece.data(), text.data() + firstBytes);
  };
  pieces.assign(text.empty() ? 0 : 1, text);
  Pieces next;
  for (const PreTokenizerStep &step : steps) {
    next.clear();
    for (const std::string_view piece : pieces) {
      switch (step.kind) {
      case StepKind::Digits:
        cutAtEnds(piece, next, [&](std::size_t begin) { return digitsEnd(piece, begin, step.argument == 1); });
        break;
      case StepKind::Pattern:
        cutAtEnds(piece, next, [&, pattern = static_cast<SplitPattern>(step.argument)](std::size_t begin) {
          return patternEnd(pattern, piece, begin);
        });
        break;
      case StepKind::PrefixSpace:
        next.push_back(piece.front() == ' ' ? piece : std::string_view(storage.emplace_back(" ").append(piece)));
        break;
      case StepKind::Text:
        cutAtText(piece, step.text, static_cast<SplitBehavior>(step.argument), next);
        break;
      case StepKind::Punctuation:
        cutAtClass(piece, UnicodeBertPunctuation, static_cast<SplitBehavior>(step.argument), next);
        break;
      case StepKind::Whitespace:
        cutAtWhitespace(piece, step.argument, next);
        break;
      case StepKind::Metaspace:
        cutAtMetaspace(piece, step, isFirst(piece), next, storage);
        break;
      }
    }
    pieces.swap(next);
  }
}
