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

enum class TokenType : std::uint8_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };

enum TokenFlag : std::uint8_t {
  TokenStripsLeft = 1,
  TokenStripsRight = 2,
  TokenIsSingleWord = 4,
  TokenIsNormalized = 8, // looked for after normalisation, in what the other added tokens left
  TokenIsInModel = 16    // BPE may give it: as a byte, by merges, or (ignoreMerges) for a pre-token that equals it
};

struct Merge {
  std::int32_t left, right, result;
};

/// A token that is looked for in the text itself, before any pre-tokenizer.
struct AddedToken {
  std::int32_t id;
  std::string spelling;
};

enum class StepKind : std::uint32_t { Digits = 1, Pattern = 2, PrefixSpace = 3 };
enum class SplitPattern : std::uint32_t { Gpt2 = 1, Llama3 = 2, Qwen2 = 3, NumbersUpTo3 = 4 };

struct PreTokenizerStep {
  StepKind kind;
  std::uint32_t argument; // Digits: 1 for each digit alone, 0 for runs; Pattern: a SplitPattern
};

struct VocabFile {
  std::string abi, modelId; // 64 hexadecimal digits

  std::string pool;                   // the bytes of all tokens
  std::vector<std::uint32_t> offsets; // token i is pool[offsets[i] ... offsets[i + 1])
  std::vector<TokenType> types;
  std::vector<std::uint8_t> flags; // TokenFlag
  std::vector<Merge> merges;       // the earlier, the stronger
  std::vector<AddedToken> added;
  std::vector<PreTokenizerStep> steps;

  std::int32_t bos, eos, unknown; // -1: none
  bool addBos, addEos;
  bool ignoreMerges; // a pre-token that equals a token becomes it without merges
  bool fuseUnknown;
  std::vector<std::int32_t> endIds;

  std::optional<ChatTemplate> chat;
  std::string chatUnavailableReason;

  std::size_t tokenCount() const { return types.size(); }
  std::string_view token(std::size_t id) const {
    return std::string_view(pool).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
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
