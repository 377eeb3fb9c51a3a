//===- Text.h - Text in, tokens out, and back -----------------------------===//
//
// A tokenizer loaded from NAME.vocab (docs/vocab-format.md). Loading checks everything that later use relies on; after
// that no input, however strange, can make encoding or decoding fail or take more than n log n time. All const members
// may be called from several threads at once. Nothing depends on the locale.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TEXT_H
#define BUDDY_TEXT_H

#include "buddy/Chat.h"
#include "buddy/Error.h"
#include "buddy/Unicode.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

struct TextModel;

/// A piece of text that is somebody else's. Spellings of special tokens mean those tokens only if `parseSpecial`.
struct Segment {
  std::string_view text;
  bool parseSpecial;
};

class Text {
public:
  /// Reads and checks NAME.vocab. Throws Error with one sentence when it cannot be read, is damaged, or is newer than
  /// this program.
  static Text load(const std::string &path);

  /// 64 hexadecimal digits each: what the weights and the program must agree with.
  const std::string &abi() const;
  const std::string &modelId() const;

  /// Token ids of `text`. `addSpecial` adds BOS and EOS as the model's own settings ask for. Special tokens spelled in
  /// the text are parsed only if `parseSpecial`; user-defined tokens always are, as the reference does.
  /// Bytes that are not UTF-8 are kept as bytes where the tokenizer has tokens for bytes; SentencePiece and BERT read
  /// them as U+FFFD. Throws Error only for a text of 2 GiB or more.
  std::vector<std::int32_t> encode(std::string_view text, bool addSpecial, bool parseSpecial) const;

  /// The same for the segments' joined text: ordinary text runs on from one segment to the next, special spellings
  /// match only inside a stretch that allows them.
  std::vector<std::int32_t> encode(const std::vector<Segment> &segments, bool addSpecial) const;
  std::vector<std::int32_t> encode(const std::vector<OwnedSegment> &segments, bool addSpecial) const;

  /// The text of `ids`, with U+FFFD for what is ill-formed, as the model's reference has it. Ids outside the
  /// vocabulary have no text.
  std::string decode(const std::vector<std::int32_t> &ids, bool skipSpecial) const;

  /// Decodes one token at a time and never gives half a character. All that push and finish returned, joined, is
  /// what decode returns.
  class Decoder {
  public:
    /// The text that is complete now, empty while a character is under way.
    std::string push(std::int32_t id);
    /// The rest, once the stream has ended. The decoder can then be used for another stream.
    std::string finish();

  private:
    friend class Text;
    Decoder(std::shared_ptr<const TextModel> ofModel, bool leaveOutSpecial);
    void append(std::string &out, std::int32_t id);
    void appendRest(std::string &out);
    void appendPiece(std::string &out, std::int32_t id, bool isByte, bool skipped);
    void dropFirstSpace(std::string &out, std::size_t begin);

    std::shared_ptr<const TextModel> model;
    std::string pending; // the beginning of a character, or a run of bytes that is text only as a whole
    bool atStart = true; // no text yet
    bool skipSpecial;
  };
  Decoder decoder(bool skipSpecial) const;

  /// True for each id that ends an answer: the model may declare several.
  bool isEnd(std::int32_t id) const;
  const std::vector<std::int32_t> &endIds() const;

  std::int64_t vocabSize() const;
  std::optional<std::int32_t> bos() const;
  std::optional<std::int32_t> eos() const;
  bool addsBos() const;
  bool addsEos() const;

  /// The bytes that a token decodes to; empty for an id outside the vocabulary.
  std::string_view tokenBytes(std::int32_t id) const;
  /// True for what skipSpecial leaves out.
  bool isSpecial(std::int32_t id) const;

  /// The chat template, or null with a reason.
  const ChatTemplate *chat() const;
  const std::string &chatUnavailableReason() const;

private:
  explicit Text(std::shared_ptr<const TextModel> loaded);
  std::shared_ptr<const TextModel> model;
};

} // namespace buddy

#endif // BUDDY_TEXT_H
