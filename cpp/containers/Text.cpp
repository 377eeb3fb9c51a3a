//===- Text.cpp - Text in, tokens out, and back ---------------------------===//

#include "buddy/Text.h"
#include "TextModel.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

using namespace buddy;

//===-- TextModel ---------------------------------------------------------===//

TextModel::TextModel(VocabFile file) : vocab(std::move(file)), added(vocab), preTokenizer(vocab.steps), bpe(vocab) {}

std::vector<std::int32_t> TextModel::encode(std::string_view text, const std::vector<Stretch> &stretches,
                                            bool addSpecial) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw Error("The text is longer than 2 GiB: give it in smaller parts.");
  std::vector<std::int32_t> ids;
  if (addSpecial && vocab.addBos)
    ids.push_back(vocab.bos);
  BpeModel::Scratch scratch;
  std::vector<std::string_view> pieces;
  std::deque<std::string> storage;
  for (const TextPart &part : added.split(text, stretches)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    storage.clear();
    preTokenizer.split(text.substr(part.begin, part.end - part.begin), pieces, storage);
    for (const std::string_view piece : pieces)
      bpe.encode(piece, scratch, ids);
  }
  if (addSpecial && vocab.addEos)
    ids.push_back(vocab.eos);
  return ids;
}

std::string_view TextModel::bytes(std::int32_t id) const {
  return isInVocabulary(id) ? vocab.token(static_cast<std::size_t>(id)) : std::string_view();
}

bool TextModel::isSpecial(std::int32_t id) const {
  if (!isInVocabulary(id))
    return false;
  const TokenType type = vocab.types[static_cast<std::size_t>(id)];
  return type == TokenType::Control || type == TokenType::Unknown;
}

//===-- Text --------------------------------------------------------------===//

namespace {

template <typename SegmentT>
std::vector<std::int32_t> encodeSegments(const TextModel &model, const std::vector<SegmentT> &segments,
                                         bool addSpecial) {
  std::string joined;
  std::vector<Stretch> stretches;
  for (const SegmentT &segment : segments) {
    joined += segment.text;
    if (!stretches.empty() && stretches.back().parseSpecial == segment.parseSpecial)
      stretches.back().end = joined.size();
    else
      stretches.push_back({joined.size(), segment.parseSpecial});
  }
  return model.encode(joined, stretches, addSpecial);
}

} // namespace

Text::Text(std::shared_ptr<const TextModel> loaded) : model(std::move(loaded)) {}

Text Text::load(const std::string &path) {
  try {
    return Text(std::make_shared<const TextModel>(readVocabFile(path)));
  } catch (const VocabDamage &damage) {
    refuseDamaged(path, damage);
  } catch (const std::bad_alloc &) {
    throw Error("There is not enough memory to load the vocabulary file '" + path + "'.");
  }
}

const std::string &Text::abi() const { return model->vocab.abi; }
const std::string &Text::modelId() const { return model->vocab.modelId; }

std::vector<std::int32_t> Text::encode(std::string_view text, bool addSpecial, bool parseSpecial) const {
  return model->encode(text, {{text.size(), parseSpecial}}, addSpecial);
}

std::vector<std::int32_t> Text::encode(const std::vector<Segment> &segments, bool addSpecial) const {
  return encodeSegments(*model, segments, addSpecial);
}

std::vector<std::int32_t> Text::encode(const std::vector<OwnedSegment> &segments, bool addSpecial) const {
  return encodeSegments(*model, segments, addSpecial);
}

std::string Text::decode(const std::vector<std::int32_t> &ids, bool skipSpecial) const {
  std::string bytes;
  for (const std::int32_t id : ids)
    if (!(skipSpecial && model->isSpecial(id)))
      bytes += model->bytes(id);
  return replaceInvalidUtf8(bytes);
}

bool Text::isEnd(std::int32_t id) const {
  const std::vector<std::int32_t> &ends = model->vocab.endIds;
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}

const std::vector<std::int32_t> &Text::endIds() const { return model->vocab.endIds; }

std::int64_t Text::vocabSize() const { return static_cast<std::int64_t>(model->vocab.tokenCount()); }

std::optional<std::int32_t> Text::bos() const {
  return model->vocab.bos < 0 ? std::nullopt : std::optional(model->vocab.bos);
}

std::optional<std::int32_t> Text::eos() const {
  return model->vocab.eos < 0 ? std::nullopt : std::optional(model->vocab.eos);
}

bool Text::addsBos() const { return model->vocab.addBos; }
bool Text::addsEos() const { return model->vocab.addEos; }

std::string_view Text::tokenBytes(std::int32_t id) const { return model->bytes(id); }
bool Text::isSpecial(std::int32_t id) const { return model->isSpecial(id); }

const ChatTemplate *Text::chat() const { return model->vocab.chat ? &*model->vocab.chat : nullptr; }
const std::string &Text::chatUnavailableReason() const { return model->vocab.chatUnavailableReason; }

//===-- Decoder -----------------------------------------------------------===//

Text::Decoder Text::decoder(bool skipSpecial) const { return Decoder(model, skipSpecial); }

Text::Decoder::Decoder(std::shared_ptr<const TextModel> ofModel, bool leaveOutSpecial)
    : model(std::move(ofModel)), skipSpecial(leaveOutSpecial) {}

std::string Text::Decoder::push(std::int32_t id) {
  if (skipSpecial && model->isSpecial(id))
    return std::string();
  pending += model->bytes(id);
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

std::string Text::Decoder::finish() {
  std::string text = replaceInvalidUtf8(pending);
  pending.clear();
  return text;
}
