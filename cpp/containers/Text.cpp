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

TextModel::TextModel(VocabFile file)
    : vocab(std::move(file)), added(vocab), normalizer(vocab), preTokenizer(vocab.steps), sentencePiece(vocab),
      bpe(vocab, sentencePiece.symbols()), unigram(vocab), wordPiece(vocab) {}

namespace {

/// Encodes the parts of one text, one after the other.
class Encoder {
public:
  Encoder(const TextModel &ofModel, std::vector<std::int32_t> &to) : model(ofModel), ids(to) {}

  /// `part` of `text`, in which no added token is left but the normalised ones. Parts come in order.
  void encode(std::string_view text, TextPart part, const std::vector<Stretch> &stretches) {
    const std::string_view stretch = text.substr(part.begin, part.end - part.begin);
    std::size_t firstBytes = part.begin == 0 ? 1 : 0;
    if (model.vocab.kind == TokenizerKind::SentencePieceBpe)
      return model.bpe.encode(model.sentencePiece.apply(stretch), scratch, ids);
    if (model.vocab.kind == TokenizerKind::SentencePieceUnigram)
      return model.unigram.encode(model.sentencePiece.apply(stretch), ids);
    if (model.normalizer.empty() && !model.added.hasNormalized())
      return encodeNormalized(stretch, firstBytes);

    std::vector<Stretch> local = within(part, stretches);
    TracedText rewritten;
    std::string_view normalized = stretch;
    if (!model.normalizer.empty()) {
      const bool seeksFirst = firstBytes > 0 && model.preTokenizer.asksForFirst();
      rewritten = model.normalizer.apply(stretch, seeksFirst || (local.size() > 1 && model.added.hasNormalized()));
      normalized = rewritten.text;
      if (seeksFirst)
        firstBytes = bytesFrom(rewritten.origins, 0);
      for (Stretch &piece : local) {
        const auto origin = std::lower_bound(rewritten.origins.begin(), rewritten.origins.end(), piece.end);
        piece.end = static_cast<std::size_t>(origin - rewritten.origins.begin());
      }
      local.back().end = normalized.size();
    }
    for (const TextPart &piece : model.added.splitNormalized(normalized, local)) {
      if (piece.id >= 0)
        ids.push_back(piece.id);
      else
        encodeNormalized(normalized.substr(piece.begin, piece.end - piece.begin),
                         firstBytes - std::min(firstBytes, piece.begin));
    }
  }

private:
  /// How many bytes come from places up to `last`.
  static std::size_t bytesFrom(const std::vector<std::uint32_t> &origins, std::uint32_t last) {
    return static_cast<std::size_t>(std::upper_bound(origins.begin(), origins.end(), last) - origins.begin());
  }

  /// The stretches that `part` lies in, as seen from its beginning.
  std::vector<Stretch> within(TextPart part, const std::vector<Stretch> &stretches) {
    std::vector<Stretch> local;
    while (stretches[current].end <= part.begin)
      ++current;
    for (std::size_t i = current; local.empty() || stretches[i - 1].end < part.end; ++i)
      local.push_back({std::min(stretches[i].end, part.end) - part.begin, stretches[i].parseSpecial});
    return local;
  }

  void encodeNormalized(std::string_view text, std::size_t firstBytes) {
    storage.clear();
    model.preTokenizer.split(text, firstBytes, pieces, storage);
    for (const std::string_view piece : pieces) {
      if (model.vocab.kind == TokenizerKind::WordPiece)
        model.wordPiece.encode(piece, ids);
      else
        model.bpe.encode(piece, scratch, ids);
    }
  }

  const TextModel &model;
  std::vector<std::int32_t> &ids;
  std::size_t current = 0; // the stretch of the latest part
  BpeModel::Scratch scratch;
  std::vector<std::string_view> pieces;
  std::deque<std::string> storage;
};

} // namespace

std::vector<std::int32_t> TextModel::encode(std::string_view text, const std::vector<Stretch> &stretches,
                                            bool addSpecial) const {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw Error("The text is longer than 2 GiB: give it in smaller parts.");
  std::vector<std::int32_t> ids;
  if (addSpecial && vocab.addBos)
    ids.push_back(vocab.bos);
  Encoder encoder(*this, ids);
  for (const TextPart &part : added.split(text, stretches)) {
    if (part.id >= 0)
      ids.push_back(part.id);
    else
      encoder.encode(text, part, stretches);
  }
  if (addSpecial && vocab.addEos)
    ids.push_back(vocab.eos);
  return ids;
}

std::string_view TextModel::bytes(std::int32_t id) const {
  return isInVocabulary(id) ? vocab.text(static_cast<std::size_t>(id)) : std::string_view();
}

bool TextModel::isSpecial(std::int32_t id) const {
  return isInVocabulary(id) && (vocab.flags[static_cast<std::size_t>(id)] & TokenIsSkipped);
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
