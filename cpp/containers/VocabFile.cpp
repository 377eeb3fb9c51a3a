//===- VocabFile.cpp - NAME.vocab, read and checked -----------------------===//
//
// The file is read, not mapped: it is small, and a file that somebody truncates later must not kill the program.
//
//===----------------------------------------------------------------------===//

#include "VocabFile.h"
#include "ChatDate.h"
#include "VocabReader.h"
#include "buddy/Error.h"
#include "buddy/Unicode.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <initializer_list>
#include <limits>
#include <map>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

using namespace buddy;

namespace {

constexpr std::string_view magic = "BUDDYVOC";
constexpr std::uint32_t formatVersion = 2;
constexpr std::size_t checkedFrom = 16; // magic, version and checksum stand before it
constexpr std::size_t sectionRecordSize = 24;

[[noreturn]] void refuse(const std::string &path, const std::string &what) {
  throw Error("The vocabulary file '" + path + "' " + what);
}

//===-- Reading the bytes -------------------------------------------------===//

std::string readWhole(const std::string &path) {
  const auto failed = [&] {
    // Not strerror: several threads may load files.
    refuse(path, "cannot be read: " + std::generic_category().message(errno) + ".");
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    failed();
  struct Closer {
    int file;
    ~Closer() { ::close(file); }
  } closer{file};

  struct stat status{};
  if (::fstat(file, &status) != 0)
    failed();
  if (!S_ISREG(status.st_mode))
    refuse(path, "is not a regular file.");
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n = ::read(file, &bytes[filled], bytes.size() - filled);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      failed();
    if (n == 0)
      break;
    filled += static_cast<std::size_t>(n);
  }
  bytes.resize(filled);
  return bytes;
}

//===-- Checksum ----------------------------------------------------------===//

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables makeCrcTables() {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) ? 0xedb88320U : 0U);
    tables[0][i] = value;
  }
  for (std::size_t table = 1; table < 8; ++table)
    for (std::size_t i = 0; i < 256; ++i)
      tables[table][i] = (tables[table - 1][i] >> 8) ^ tables[0][tables[table - 1][i] & 0xff];
  return tables;
}

/// CRC-32 as zlib computes it, eight bytes at a time.
std::uint32_t crc32(std::string_view bytes) {
  static constexpr CrcTables tables = makeCrcTables();
  const auto byteAt = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  std::uint32_t crc = 0xffffffffU;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::uint8_t mixed = static_cast<std::uint8_t>(byteAt(i + k) ^ (k < 4 ? (crc >> (8 * k)) & 0xff : 0));
      next ^= tables[7 - k][mixed];
    }
    crc = next;
  }
  for (; i < bytes.size(); ++i)
    crc = (crc >> 8) ^ tables[0][(crc ^ byteAt(i)) & 0xff];
  return ~crc;
}

//===-- Sections ----------------------------------------------------------===//

void checkId(const VocabFile &vocab, std::int64_t id, const char *what) {
  if (id < 0 || static_cast<std::uint64_t>(id) >= vocab.tokenCount())
    throw VocabDamage(std::string(what) + " " + std::to_string(id) + " is not in its vocabulary of " +
                      std::to_string(vocab.tokenCount()) + " tokens");
}

StringPool readPool(VocabReader &reader, std::size_t count, const char *what) {
  StringPool pool;
  pool.offsets.resize(count + 1);
  for (std::uint32_t &offset : pool.offsets)
    offset = reader.u32();
  if (pool.offsets[0] != 0 || !std::is_sorted(pool.offsets.begin(), pool.offsets.end()))
    throw VocabDamage(std::string(what) + " offsets are not in order");
  return pool;
}

void readTokens(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(6); // an offset, a type, flags
  if (count == 0 || count > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max()))
    throw VocabDamage("its number of tokens, " + std::to_string(count) + ", is out of range");
  vocab.spellings = readPool(reader, count, "its tokens'");
  vocab.types.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint8_t type = reader.u8();
    if (type < static_cast<std::uint8_t>(TokenType::Normal) || type > static_cast<std::uint8_t>(TokenType::Byte))
      throw VocabDamage("token " + std::to_string(i) + " is of the unknown type " + std::to_string(type));
    vocab.types.push_back(static_cast<TokenType>(type));
  }
  const std::string_view flags = reader.take(count);
  vocab.flags.assign(flags.begin(), flags.end());
  vocab.spellings.bytes = std::string(reader.take(vocab.spellings.offsets.back()));
  reader.finish();
}

/// None, or one string for each token.
StringPool readTexts(VocabReader reader, const VocabFile &vocab, const char *name) {
  StringPool pool;
  const std::uint32_t count = reader.count(4);
  if (count != 0 && count != vocab.tokenCount())
    throw VocabDamage(std::string("its section ") + name + " is not for " + std::to_string(vocab.tokenCount()) +
                      " tokens");
  if (count != 0) {
    pool = readPool(reader, count, "its texts'");
    pool.bytes = std::string(reader.take(pool.offsets.back()));
  }
  reader.finish();
  return pool;
}

void readScores(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(4);
  const bool needed = vocab.kind == TokenizerKind::SentencePieceUnigram;
  if (count != (needed ? vocab.tokenCount() : 0))
    throw VocabDamage("its number of scores, " + std::to_string(count) + ", does not fit its tokens");
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t bits = reader.u32();
    float score = 0;
    std::memcpy(&score, &bits, sizeof score);
    if (!std::isfinite(score))
      throw VocabDamage("the score of token " + std::to_string(i) + " is not a number");
    vocab.scores.push_back(score);
  }
  reader.finish();
}

void readMerges(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(16);
  vocab.merges.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Merge merge{reader.i32(), reader.i32(), reader.i32(), reader.u32()};
    for (const std::int32_t id : {merge.left, merge.right, merge.result})
      checkId(vocab, id, "a merge's token");
    const std::string_view left = vocab.token(static_cast<std::size_t>(merge.left));
    const std::string_view right = vocab.token(static_cast<std::size_t>(merge.right));
    const std::string_view result = vocab.token(static_cast<std::size_t>(merge.result));
    if (result.size() != left.size() + right.size() || result.substr(0, left.size()) != left ||
        result.substr(left.size()) != right)
      throw VocabDamage("merge " + std::to_string(i) + " joins " + quotedToken(left) + " and " + quotedToken(right) +
                        " to " + quotedToken(result));
    vocab.merges.push_back(merge);
  }
  reader.finish();
}

void readAdded(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(8);
  for (std::uint32_t i = 0; i < count; ++i) {
    AddedToken token;
    token.id = reader.i32();
    token.spelling = reader.string();
    checkId(vocab, token.id, "an added token");
    if (token.spelling.empty())
      throw VocabDamage("added token " + std::to_string(token.id) + " has no spelling");
    vocab.added.push_back(std::move(token));
  }
  reader.finish();
}

bool isKnownStep(const PreTokenizerStep &step) {
  const auto atMost = [&](auto last) { return step.argument <= static_cast<std::uint32_t>(last); };
  switch (step.kind) {
  case StepKind::Digits:
    return atMost(1);
  case StepKind::Pattern:
    return step.argument >= 1 && atMost(SplitPattern::DeepSeekV3);
  case StepKind::PrefixSpace:
    return atMost(0);
  case StepKind::Text:
    return atMost(SplitBehavior::Contiguous) && !step.text.empty();
  case StepKind::Punctuation:
    return atMost(SplitBehavior::Contiguous);
  case StepKind::Whitespace:
    return atMost(2);
  case StepKind::Metaspace:
    return atMost(7) && !step.text.empty();
  }
  return false;
}

void readSteps(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(12);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t kind = reader.u32();
    const std::uint32_t argument = reader.u32();
    vocab.steps.push_back({static_cast<StepKind>(kind), argument, reader.string()});
    if (!isKnownStep(vocab.steps.back()))
      throw VocabDamage("its pre-tokenizer step (" + std::to_string(kind) + ", " + std::to_string(argument) +
                        ") is unknown");
  }
  reader.finish();
}

void readNormalizers(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t count = reader.count(16);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t kind = reader.u32();
    const std::uint32_t argument = reader.u32();
    NormalizerStep step{static_cast<NormalizerKind>(kind), argument, reader.string(), reader.string()};
    const bool replaces = step.kind == NormalizerKind::Replace;
    if (kind < 1 || kind > static_cast<std::uint32_t>(NormalizerKind::Bert) || argument > 15 ||
        (replaces && step.text.empty()))
      throw VocabDamage("it asks for the normaliser (" + std::to_string(kind) + ", " + std::to_string(argument) +
                        "), which this program does not know");
    vocab.normalizers.push_back(std::move(step));
  }
  reader.finish();
}

/// A word of 1 add a dummy prefix, 2 remove extra spaces, 4 escape spaces, 8 space as a suffix; the charsmap.
void readRules(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t bits = reader.u32();
  if (bits > 15)
    throw VocabDamage("its SentencePiece rules are unknown to this program");
  SentencePieceRules &rules = vocab.rules;
  rules.addDummyPrefix = bits & 1;
  rules.removeExtraSpaces = bits & 2;
  rules.escapeSpaces = bits & 4;
  rules.spaceAsSuffix = bits & 8;
  const std::uint32_t units = reader.count(4);
  rules.charsmapUnits.reserve(units);
  for (std::uint32_t i = 0; i < units; ++i)
    rules.charsmapUnits.push_back(reader.u32());
  rules.charsmapTexts = reader.string();
  if (units != 0 && (rules.charsmapTexts.empty() || rules.charsmapTexts.back() != '\0'))
    throw VocabDamage("its charsmap's texts do not end");
  reader.finish();
}

void readDecoding(VocabReader reader, VocabFile &vocab) {
  const std::uint32_t style = reader.u32();
  vocab.decodeStyle = static_cast<DecodeStyle>(style);
  vocab.decodeArgument = reader.u32();
  if (style < 1 || style > 4 || vocab.decodeArgument > 2)
    throw VocabDamage("its way of decoding (" + std::to_string(style) + ", " + std::to_string(vocab.decodeArgument) +
                      ") is unknown");
  if (vocab.decodeStyle == DecodeStyle::FirstDiffers && vocab.firstTexts.empty())
    throw VocabDamage("its section FIRST is empty");
  reader.finish();
}

void readSettings(VocabReader reader, VocabFile &vocab) {
  vocab.bos = reader.i32();
  vocab.eos = reader.i32();
  vocab.unknown = reader.i32();
  const std::uint32_t settings = reader.u32();
  if (settings > 31)
    throw VocabDamage("its settings are unknown to this program");
  vocab.addBos = settings & 1;
  vocab.addEos = settings & 2;
  vocab.ignoreMerges = settings & 4;
  vocab.fuseUnknown = settings & 8;
  vocab.byteFallback = settings & 16;
  vocab.maxWordChars = reader.u32();
  vocab.continuingPrefix = reader.string();
  for (const std::int32_t id : {vocab.bos, vocab.eos, vocab.unknown})
    if (id != -1)
      checkId(vocab, id, "the special token");
  if (vocab.unknown < 0 && (vocab.kind == TokenizerKind::SentencePieceBpe || vocab.kind == TokenizerKind::WordPiece ||
                            vocab.kind == TokenizerKind::SentencePieceUnigram))
    throw VocabDamage("it names no unknown token");
  if ((vocab.addBos && vocab.bos < 0) || (vocab.addEos && vocab.eos < 0))
    throw VocabDamage("it asks for a BOS or EOS that it does not name");
  const std::uint32_t count = reader.count(4);
  for (std::uint32_t i = 0; i < count; ++i) {
    vocab.endIds.push_back(reader.i32());
    checkId(vocab, vocab.endIds.back(), "the end token");
  }
  reader.finish();
}

bool readFlag(VocabReader &reader) {
  const std::uint32_t value = reader.u32();
  if (value > 1)
    throw VocabDamage("its section CHAT has the flag " + std::to_string(value));
  return value == 1;
}

std::string readText(VocabReader &reader) {
  std::string text = reader.string();
  if (!isValidUtf8(text))
    throw VocabDamage("its section CHAT holds text that is not UTF-8");
  return text;
}

ChatPiece readPiece(VocabReader &reader) {
  ChatPiece piece;
  const std::uint32_t count = reader.count(8);
  for (std::uint32_t i = 0; i < count; ++i) {
    ChatPiece::Part part;
    part.isDate = readFlag(reader);
    part.text = readText(reader);
    if (part.isDate && !isChatDateFormat(part.text))
      throw VocabDamage("its date format " + quotedToken(part.text) + " is unknown");
    piece.parts.push_back(std::move(part));
  }
  return piece;
}

void readChat(VocabReader reader, VocabFile &vocab) {
  if (!readFlag(reader)) {
    vocab.chatUnavailableReason = readText(reader);
    reader.finish();
    return;
  }
  ChatTemplate::Data data;
  data.supportsSystem = readFlag(reader);
  data.systemUnsupportedReason = readText(reader);
  for (ChatPiece &piece : data.pieces)
    piece = readPiece(reader);
  for (ContentRule &rule : data.rules) {
    const std::uint32_t bits = reader.u32();
    if (bits > 7)
      throw VocabDamage("its chat template has a content rule that is unknown");
    rule = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
  }
  reader.finish();
  vocab.chat.emplace(std::move(data));
}

bool isHash(const std::string &text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

VocabFile parse(std::string_view file) {
  VocabReader header(file, "header");
  header.take(checkedFrom);
  if (header.u64() != file.size())
    throw VocabDamage("its size is not what its header says");
  const std::uint32_t kind = header.u32();
  if (kind < static_cast<std::uint32_t>(TokenizerKind::ByteLevelBpe) ||
      kind > static_cast<std::uint32_t>(TokenizerKind::CharacterBpe))
    throw VocabDamage("its tokenizer is of kind " + std::to_string(kind) + ", which this program does not know");
  const std::uint32_t sectionCount = header.u32();
  VocabFile vocab{};
  vocab.kind = static_cast<TokenizerKind>(kind);
  vocab.abi = std::string(header.take(64));
  vocab.modelId = std::string(header.take(64));
  if (!isHash(vocab.abi) || !isHash(vocab.modelId))
    throw VocabDamage("its hashes are not hexadecimal");

  std::map<std::string, std::string_view> sections;
  for (std::uint32_t i = 0; i < sectionCount; ++i) {
    VocabReader record(header.take(sectionRecordSize), "header");
    const std::string tag(record.take(8));
    const std::uint64_t offset = record.u64();
    const std::uint64_t size = record.u64();
    if (offset > file.size() || size > file.size() - offset)
      throw VocabDamage("its section " + quotedToken(tag) + " lies outside of the file");
    if (!sections.emplace(tag, file.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(size))).second)
      throw VocabDamage("its section " + quotedToken(tag) + " stands there twice");
  }
  const auto section = [&](const char *name) {
    std::string tag(name);
    tag.resize(8, ' ');
    const auto found = sections.find(tag);
    if (found == sections.end())
      throw VocabDamage(std::string("its section ") + name + " is missing");
    return VocabReader(found->second, name);
  };
  readTokens(section("TOKENS"), vocab);
  vocab.texts = readTexts(section("TEXTS"), vocab, "TEXTS");
  vocab.firstTexts = readTexts(section("FIRST"), vocab, "FIRST");
  readScores(section("SCORES"), vocab);
  readMerges(section("MERGES"), vocab);
  readAdded(section("ADDED"), vocab);
  readSteps(section("STEPS"), vocab);
  readNormalizers(section("NORMAL"), vocab);
  readRules(section("SPRULES"), vocab);
  readDecoding(section("DECODE"), vocab);
  readSettings(section("SETTINGS"), vocab);
  readChat(section("CHAT"), vocab);
  return vocab;
}

} // namespace

void buddy::refuseDamaged(const std::string &path, const VocabDamage &damage) {
  refuse(path, std::string("is damaged: ") + damage.what() + ". Build the model again.");
}

std::string buddy::quotedToken(std::string_view bytes) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (const char c : replaceInvalidUtf8(bytes.substr(0, longest))) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
      continue;
    }
    constexpr char digits[] = "0123456789abcdef";
    out += c == '\n' ? std::string("\\n") : std::string("\\x") + digits[byte >> 4] + digits[byte & 15];
  }
  return out + (bytes.size() > longest ? "...'" : "'");
}

VocabFile buddy::readVocabFile(const std::string &path) {
  const std::string file = readWhole(path);
  if (std::string_view(file).substr(0, magic.size()) != magic)
    refuse(path, "is not a vocabulary file of buddy-gen.");
  try {
    VocabReader reader(std::string_view(file).substr(magic.size()), "header");
    const std::uint32_t version = reader.u32();
    if (version != formatVersion)
      refuse(path, "has format version " + std::to_string(version) + ", this program reads version " +
                       std::to_string(formatVersion) + ": build the model and the program with the same buddy-gen.");
    if (reader.u32() != crc32(std::string_view(file).substr(std::min(file.size(), checkedFrom))))
      throw VocabDamage("its checksum does not match");
    return parse(file);
  } catch (const VocabDamage &damage) {
    refuseDamaged(path, damage);
  }
}
