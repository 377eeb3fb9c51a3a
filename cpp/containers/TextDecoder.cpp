//===- TextDecoder.cpp - From tokens to text, one by one ------------------===//

#include "TextModel.h"
#include "UnicodeClasses.h"
#include "buddy/Text.h"

#include <algorithm>
#include <utility>

using namespace buddy;

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

/// Takes what is decided off the beginning of `pending`: all of it, if `ended`. One U+FFFD for each byte that is not
/// part of a character, as SentencePiece has it.
std::string takeCharacters(std::string &pending, bool ended) {
  std::string text;
  std::size_t done = 0;
  while (done < pending.size()) {
    const Utf8Step step = readUtf8(std::string_view(pending).substr(done));
    if (step.truncated && !ended)
      break;
    text += step.valid ? std::string_view(pending).substr(done, step.length) : replacement;
    done += step.valid ? step.length : 1;
  }
  pending.erase(0, done);
  return text;
}

/// A whole run of byte tokens: text if it is UTF-8, else U+FFFD for each byte, as `tokenizers` has it.
std::string takeRun(std::string &run) {
  std::string text;
  if (isValidUtf8(run))
    text = run;
  else
    for (std::size_t i = 0; i < run.size(); ++i)
      text += replacement;
  run.clear();
  return text;
}

/// The same for bytes that are joined: what is complete.
std::string takeBytes(std::string &pending) {
  // Only the last three bytes can be the beginning of a character that goes on.
  std::size_t complete = pending.size();
  for (std::size_t back = 1; back <= 3 && back <= pending.size(); ++back) {
    const Utf8Step step = readUtf8(std::string_view(pending).substr(pending.size() - back));
    if (step.truncated && step.length == back)
      complete = pending.size() - back;
  }
  std::string text = replaceInvalidUtf8(std::string_view(pending).substr(0, complete));
  pending.erase(0, complete);
  return text;
}

} // namespace

Text::Decoder Text::decoder(bool skipSpecial) const { return Decoder(model, skipSpecial); }

Text::Decoder::Decoder(std::shared_ptr<const TextModel> ofModel, bool leaveOutSpecial)
    : model(std::move(ofModel)), skipSpecial(leaveOutSpecial) {}

std::string Text::Decoder::push(std::int32_t id) {
  if (!model->isInVocabulary(id))
    return {};
  const bool isByte = model->vocab.types[static_cast<std::size_t>(id)] == TokenType::Byte;
  const bool skipped = skipSpecial && model->isSpecial(id);
  switch (model->vocab.decodeStyle) {
  case DecodeStyle::SentencePiece:
    return pushPiece(id, isByte, skipped);
  case DecodeStyle::WholeByteRuns:
    if (skipped)
      return {};
    if (isByte) {
      pending += model->bytes(id);
      return {};
    }
    return withoutFirstSpace(takeRun(pending) + replaceInvalidUtf8(model->bytes(id)));
  case DecodeStyle::FirstDiffers: {
    if (skipped)
      return {};
    const bool first = std::exchange(atStart, false);
    return replaceInvalidUtf8(first ? model->vocab.firstTexts[static_cast<std::size_t>(id)] : model->bytes(id));
  }
  case DecodeStyle::Bytes:
    break;
  }
  if (skipped)
    return {};
  pending += model->bytes(id);
  return takeBytes(pending);
}

/// Strip's " " on the left, once, of all the text.
std::string Text::Decoder::withoutFirstSpace(std::string text) {
  if (model->vocab.decodeArgument == 0 || text.empty() || !std::exchange(atStart, false))
    return text;
  if (text.front() == ' ')
    text.erase(0, 1);
  return text;
}

/// Control tokens have no text in SentencePiece; where they are shown, what stands around them decodes as if they were
/// not. A byte run ends at them.
std::string Text::Decoder::pushPiece(std::int32_t id, bool isByte, bool skipped) {
  const auto index = static_cast<std::size_t>(id);
  std::string text;
  if (isByte) {
    pending += model->bytes(id);
    text = takeCharacters(pending, false);
    atStart = atStart && text.empty();
    return text;
  }
  text = takeCharacters(pending, true);
  atStart = atStart && text.empty();
  const bool isControl = model->vocab.types[index] == TokenType::Control;
  if (isControl)
    return skipped ? text : text + replaceInvalidUtf8(model->bytes(id));
  std::string_view piece = model->bytes(id);
  const std::uint32_t stripping = model->vocab.decodeArgument;
  const bool strips = atStart && stripping != 0 && (model->vocab.flags[index] & TokenLeadsSpace);
  if (strips)
    piece.remove_prefix(std::min<std::size_t>(1, piece.size()));
  if (!piece.empty() || (strips && stripping == 1))
    atStart = false;
  return text + replaceInvalidUtf8(piece);
}

std::string Text::Decoder::finish() {
  std::string text;
  switch (model->vocab.decodeStyle) {
  case DecodeStyle::SentencePiece:
    text = takeCharacters(pending, true);
    break;
  case DecodeStyle::WholeByteRuns:
    text = withoutFirstSpace(takeRun(pending));
    break;
  case DecodeStyle::Bytes:
  case DecodeStyle::FirstDiffers:
    text = replaceInvalidUtf8(pending);
    break;
  }
  pending.clear();
  atStart = true;
  return text;
}
