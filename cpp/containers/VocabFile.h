//===- VocabFile.h - NAME.vocab, read and checked -------------------------===//
//
// The format is described in docs/vocab-format.md. readVocabFile is the only place that sees unchecked bytes: whatever
// it returns is consistent (ids in range, token bytes inside the pool, known enumerators).
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_VOCABFILE_H
#define BUDDY_VOCABFILE_H

#include "buddy/Chat.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

enum class TokenizerKind : std::uint32_t {
  ByteLevelBpe = 1,
  SentencePieceBpe = 2,
  SentencePieceUnigram = 3,
  WordPiece = 4,
  CharacterBpe = 5 // as in `tokenizers`, where SentencePiece models were converted to it
};

enum class TokenType : std::uint8_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };

enum TokenFlag : std::uint8_t {
  TokenStripsLeft = 1,
  TokenStripsRight = 2,
  TokenIsSingleWord = 4,
  TokenIsNormalized = 8, // looked for after normalisation, in what the other added tokens left
  TokenIsInModel = 16,   // the model may give it: as a byte or character, by merges, or whole
  TokenIsSkipped = 32,   // left out where special tokens are
  TokenLeadsSpace = 64   // SentencePiece: its piece begins with U+2581
};

struct Merge {
  std::int32_t left, right, result;
  std::uint32_t rank; // the lower, the stronger; several merges may share one
};

/// A token that is looked for in the text itself, before any pre-tokenizer.
struct AddedToken {
  std::int32_t id;
  std::string spelling;
};

enum class StepKind : std::uint32_t {
  Digits = 1,      // 1: each digit alone, 0: runs
  Pattern = 2,     // a SplitPattern, isolated
  PrefixSpace = 3, // a space before each piece that has none
  Text = 4,        // cuts at `text`; a SplitBehavior
  Punctuation = 5, // a SplitBehavior
  Whitespace = 6,  // 0: words and runs of symbols, 1: whatever stands between spaces, 2: BERT's
  Metaspace = 7    // `text` for spaces; MetaspaceFlag
};
enum class SplitPattern : std::uint32_t {
  Gpt2 = 1,
  Llama3 = 2,
  Qwen2 = 3,
  NumbersUpTo3 = 4,
  O200k = 5,
  Tekken = 6,
  CjkRuns = 7,
  DeepSeekV3 = 8
};
enum class SplitBehavior : std::uint32_t { Removed = 0, Isolated = 1, WithPrevious = 2, WithNext = 3, Contiguous = 4 };
enum MetaspaceFlag : std::uint32_t { MetaspacePrefixFirst = 1, MetaspacePrefixAlways = 2, MetaspaceSplits = 4 };

struct PreTokenizerStep {
  StepKind kind;
  std::uint32_t argument;
  std::string text;
};

enum class NormalizerKind : std::uint32_t {
  Nfc = 1,
  Nfd = 2,
  Nfkc = 3,
  Nfkd = 4,
  Lowercase = 5,
  StripAccents = 6,
  Prepend = 7, // `text`
  Replace = 8, // `text` by `other`
  Strip = 9,   // 1 left, 2 right
  Bert = 10    // BertFlag
};
enum BertFlag : std::uint32_t { BertCleans = 1, BertSpacesChinese = 2, BertStripsAccents = 4, BertLowers = 8 };

struct NormalizerStep {
  NormalizerKind kind;
  std::uint32_t argument;
  std::string text, other;
};

/// SentencePiece's own normaliser.
struct SentencePieceRules {
  bool addDummyPrefix = false;
  bool removeExtraSpaces = false;
  bool escapeSpaces = false;
  bool spaceAsSuffix = false;
  std::vector<std::uint32_t> charsmapUnits; // a double array, as Darts lays it out
  std::string charsmapTexts;                // each ends with NUL
};

enum class DecodeStyle : std::uint32_t {
  Bytes = 1, // the tokens' bytes, joined
  WholeByteRuns =
      2, // a run of byte tokens is text as a whole, or U+FFFD for each; argument: 1 takes a leading space off
  SentencePiece = 3, // argument: 0 keeps leading spaces, 1 takes one off, 2 all
  FirstDiffers = 4   // the first token has a text of its own
};

/// Strings one after the other: number i is bytes[offsets[i] ... offsets[i + 1]).
struct StringPool {
  std::string bytes;
  std::vector<std::uint32_t> offsets;
  bool empty() const { return offsets.size() < 2; }
  std::string_view operator[](std::size_t i) const {
    return std::string_view(bytes).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }
};

struct VocabFile {
  std::string abi, modelId; // 64 hexadecimal digits
  TokenizerKind kind;

  StringPool spellings;  // as the model knows the tokens
  StringPool texts;      // as they decode; empty: as they are spelled
  StringPool firstTexts; // DecodeStyle::FirstDiffers
  std::vector<TokenType> types;
  std::vector<std::uint8_t> flags; // TokenFlag
  std::vector<Merge> merges;       // by rank
  std::vector<float> scores;       // unigram: one for each token
  std::vector<AddedToken> added;
  std::vector<PreTokenizerStep> steps;
  std::vector<NormalizerStep> normalizers;
  SentencePieceRules rules;

  DecodeStyle decodeStyle;
  std::uint32_t decodeArgument;

  std::int32_t bos, eos, unknown; // -1: none
  bool addBos, addEos;
  bool ignoreMerges; // a pre-token that equals a token becomes it without merges
  bool fuseUnknown;
  bool byteFallback;            // what has no token becomes its bytes
  std::uint32_t maxWordChars;   // WordPiece: a longer word is unknown
  std::string continuingPrefix; // WordPiece
  std::vector<std::int32_t> endIds;

  std::optional<ChatTemplate> chat;
  std::string chatUnavailableReason;

  std::size_t tokenCount() const { return types.size(); }
  std::string_view token(std::size_t id) const { return spellings[id]; }
  std::string_view text(std::size_t id) const { return texts.empty() ? spellings[id] : texts[id]; }
};

/// What is wrong with a vocabulary, as the middle of a sentence: "two of its tokens ...".
struct VocabDamage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws the Error that a damaged file is refused with.
[[noreturn]] void refuseDamaged(const std::string &path, const VocabDamage &damage);

/// A token's bytes for a message: on one line, in quotes, not too long.
std::string quotedToken(std::string_view bytes);

/// Throws Error with one sentence that names the file.
VocabFile readVocabFile(const std::string &path);

} // namespace buddy

#endif // BUDDY_VOCABFILE_H
