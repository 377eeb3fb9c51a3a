//===- TextDecoder.cpp - From tokens to text, one by one ------------------===//

#include "TextModel.h"
#include "UnicodeClasses.h"
#include "buddy/Text.h"

#include <algorithm>
#include <utility>

using namespace buddy;

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

/// The bytes of a token, with U+FFFD for what is ill-formed.
void appendBytes(std::string &out, std::string_view bytes) {
  if (isValidUtf8(bytes))
    out += bytes;
  else
    out += replaceInvalidUtf8(bytes);
}

/// Moves what is decided from the beginning of `pending` to `out`: all of it, if `ended`. One U+FFFD for each byte that
/// is not part of a character, as SentencePiece has it.
void takeCharacters(std::string &out, std::string &pending, bool ended) {
  std::size_t done = 0;
  while (done < pending.size()) {
    const Utf8Step step = readUtf8(std::string_view(pending).substr(done));
    if (step.truncated && !ended)
      break;
    out += step.valid ? std::string_view(pending).substr(done, step.length) : replacement;
    done += step.valid ? step.length : 1;
  }
  pending.erase(0, done);
}

/// A whole run of byte tokens: text if it is UTF-8, else U+FFFD for each byte, as `tokenizers` has it.
void takeRun(std::string &out, std::string &run) {
  if (isValidUtf8(run))
    out += run;
  else
    for (std::size_t i = 0; i < run.size(); ++i)
      out += replacement;
  run.clear();
}

/// The same for bytes that are joined: what is complete.
void takeBytes(std::string &out, std::string &pending) {
  // Only the last three bytes can be the beginning of a character that goes on.
  std::size_t complete = pending.size();
  for (std::size_t back = 1; back <= 3 && back <= pending.size(); ++back) {
    const Utf8Step step = readUtf8(std::string_view(pending).substr(pending.size() - back));
    if (step.truncated && step.length == back)
      complete = pending.size() - back;
  }
  appendBytes(out, std::string_view(pending).substr(0, complete));
  pending.erase(0, complete);
}

} // namespace

Text::Decoder Text::decoder(bool skipSpecial) const { return Decoder(model, skipSpecial); }

Text::Decoder::Decoder(std::shared_ptr<const TextModel> ofModel, bool leaveOutSpecial)
    : model(std::move(ofModel)), skipSpecial(leaveOutSpecial) {}

std::string Text::decode(const std::vector<std::int32_t> &ids, bool skipSpecial) const {
  Decoder stream = decoder(skipSpecial);
  std::string text;
  text.reserve(4 * ids.size());
  for (const std::int32_t id : ids)
    stream.append(text, id);
  stream.appendRest(text);
  return text;
}

std::string Text::Decoder::push(std::int32_t id) {
  std::string text;
  append(text, id);
  return text;
}

std::string Text::Decoder::finish() {
  std::string text;
  appendRest(text);
  return text;
}

void Text::Decoder::append(std::string &out, std::int32_t id) {
  if (!model->isInVocabulary(id))
    return;
  const bool isByte = model->vocab.types[static_cast<std::size_t>(id)] == TokenType::Byte;
  const bool skipped = skipSpecial && model->isSpecial(id);
  if (model->vocab.decodeStyle == DecodeStyle::SentencePiece) {
    appendPiece(out, id, isByte, skipped);
    return;
  }
  if (skipped)
    return;
  const std::size_t before = out.size();
  switch (model->vocab.decodeStyle) {
  case DecodeStyle::WholeByteRuns:
    if (isByte) {
      pending += model->bytes(id);
      return;
    }
    takeRun(out, pending);
    appendBytes(out, model->bytes(id));
    dropFirstSpace(out, before);
    return;
  case DecodeStyle::FirstDiffers: {
    const bool first = std::exchange(atStart, false);
    appendBytes(out, first ? model->vocab.firstTexts[static_cast<std::size_t>(id)] : model->bytes(id));
    return;
  }
  case DecodeStyle::Bytes:
  case DecodeStyle::SentencePiece:
    pending += model->bytes(id);
    takeBytes(out, pending);
    return;
  }
}

/// Strip's " " on the left, once, of all the text; `begin` is where the newest of it begins.
void Text::Decoder::dropFirstSpace(std::string &out, std::size_t begin) {
  if (model->vocab.decodeArgument == 0 || out.size() == begin || !std::exchange(atStart, false))
    return;
  if (out[begin] == ' ')
    out.erase(begin, 1);
}

/// Control tokens have no text in SentencePiece; where they are shown, what stands around them decodes as if they were
/// not. A byte run ends at them.
void Text::Decoder::appendPiece(std::string &out, std::int32_t id, bool isByte, bool skipped) {
  const auto index = static_cast<std::size_t>(id);
  const std::size_t before = out.size();
  if (isByte)
    pending += model->bytes(id);
  if (!pending.empty())
    takeCharacters(out, pending, /*ended=*/!isByte);
  atStart = atStart && out.size() == before;
  if (isByte)
    return;
  if (model->vocab.types[index] == TokenType::Control) {
    if (!skipped)
      appendBytes(out, model->bytes(id));
    return;
  }
  std::string_view piece = model->bytes(id);
  const std::uint32_t stripping = model->vocab.decodeArgument;
  const bool strips = atStart && stripping != 0 && (model->vocab.flags[index] & TokenLeadsSpace);
  if (strips)
    piece.remove_prefix(std::min<std::size_t>(1, piece.size()));
  if (!piece.empty() || (strips && stripping == 1))
    atStart = false;
  appendBytes(out, piece);
}

void Text::Decoder::appendRest(std::string &out) {
  const std::size_t before = out.size();
  switch (model->vocab.decodeStyle) {
  case DecodeStyle::SentencePiece:
    takeCharacters(out, pending, true);
    break;
  case DecodeStyle::WholeByteRuns:
    takeRun(out, pending);
    dropFirstSpace(out, before);
    break;
  case DecodeStyle::Bytes:
  case DecodeStyle::FirstDiffers:
    appendBytes(out, pending);
    break;
  }
  pending.clear();
  atStart = true;
}
