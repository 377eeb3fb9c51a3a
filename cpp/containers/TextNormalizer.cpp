//===- TextNormalizer.cpp - What happens to text before it is cut ---------===//

#include "TextNormalizer.h"
#include "UnicodeClasses.h"

#include <utility>

using namespace buddy;

namespace {

/// Appends `text` without the characters of the classes in `bits`.
void appendWithout(std::string_view text, std::uint32_t bits, TracedText &out) {
  for (std::size_t i = 0; i < text.size();) {
    const ClassifiedChar c = classifyNext(text, i);
    if (!c.is(bits))
      out.append(text.substr(i, c.length), i);
    i += c.length;
  }
}

/// What is put in comes, as in the reference, from the last character that it replaces.
void appendReplaced(std::string_view text, std::string_view from, std::string_view to, TracedText &out) {
  const std::size_t last = from.size() - classifyPrevious(from, from.size()).length;
  std::size_t begin = 0;
  for (std::size_t found; (found = text.find(from, begin)) != std::string_view::npos; begin = found + from.size()) {
    for (std::size_t i = begin; i < found; ++i)
      out.append(text.substr(i, 1), i);
    out.append(to, found + last);
  }
  for (std::size_t i = begin; i < text.size(); ++i)
    out.append(text.substr(i, 1), i);
}

void appendStripped(std::string_view text, bool left, bool right, TracedText &out) {
  std::size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const ClassifiedChar c = classifyNext(text, begin);
    if (!c.is(UnicodeWhitespace))
      break;
    begin += c.length;
  }
  while (right && begin < end) {
    const ClassifiedChar c = classifyPrevious(text, end);
    if (!c.is(UnicodeWhitespace))
      break;
    end -= c.length;
  }
  for (; begin < end; ++begin)
    out.append(text.substr(begin, 1), begin);
}

/// BERT's clean_text and handle_chinese_chars.
void appendClean(std::string_view text, std::uint32_t flags, TracedText &out) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = readUtf8(text.substr(i, 4));
    const std::uint32_t classes = unicodeClass(step.codePoint); // U+FFFD for what is not UTF-8
    const bool cleans = flags & BertCleans;
    if (cleans && (classes & UnicodeBertSpace))
      out.append(" ", i);
    else if ((flags & BertSpacesChinese) && (classes & UnicodeChinese)) {
      out.append(" ", i);
      out.append(text.substr(i, step.length), i);
      out.append(" ", i);
    } else if (!cleans || !(classes & UnicodeBertRemoved))
      out.append(text.substr(i, step.length), i);
    i += step.length;
  }
}

void applyStep(const NormalizerStep &step, std::string_view text, TracedText &out) {
  switch (step.kind) {
  case NormalizerKind::Nfc:
    return appendNormalized(text, NormalForm::Nfc, out);
  case NormalizerKind::Nfd:
    return appendNormalized(text, NormalForm::Nfd, out);
  case NormalizerKind::Nfkc:
    return appendNormalized(text, NormalForm::Nfkc, out);
  case NormalizerKind::Nfkd:
    return appendNormalized(text, NormalForm::Nfkd, out);
  case NormalizerKind::Lowercase:
    return appendLowerCase(text, out);
  case NormalizerKind::StripAccents:
    return appendWithout(text, UnicodeAccent, out);
  case NormalizerKind::Prepend:
    if (!text.empty())
      out.append(step.text, 0);
    return appendStripped(text, false, false, out);
  case NormalizerKind::Replace:
    return appendReplaced(text, step.text, step.other, out);
  case NormalizerKind::Strip:
    return appendStripped(text, step.argument & 1, step.argument & 2, out);
  case NormalizerKind::Bert:
    break; // taken apart by apply
  }
}

TracedText applyTraced(const NormalizerStep &step, std::string_view text, bool traced) {
  TracedText out;
  out.traced = traced;
  out.text.reserve(text.size() + text.size() / 4);
  if (step.kind == NormalizerKind::Bert)
    appendClean(text, step.argument, out);
  else
    applyStep(step, text, out);
  return out;
}

/// `after` traced to what `before` is traced to.
TracedText chained(const TracedText &before, TracedText after) {
  for (std::uint32_t &origin : after.origins)
    origin = before.origins[origin];
  return after;
}

} // namespace

TracedText Normalizer::apply(std::string_view text, bool traced) const {
  TracedText current;
  current.traced = traced;
  bool first = true;
  const auto run = [&](const NormalizerStep &step) {
    if (first)
      current = applyTraced(step, text, traced);
    else
      current = chained(current, applyTraced(step, current.text, traced));
    first = false;
  };
  for (const NormalizerStep &step : steps) {
    run(step);
    if (step.kind != NormalizerKind::Bert)
      continue;
    if (step.argument & BertStripsAccents) {
      run({NormalizerKind::Nfd, 0, {}, {}});
      TracedText bare;
      bare.traced = traced;
      appendWithout(current.text, UnicodeBertAccent, bare);
      current = chained(current, std::move(bare));
    }
    if (step.argument & BertLowers)
      run({NormalizerKind::Lowercase, 0, {}, {}});
  }
  return current;
}
