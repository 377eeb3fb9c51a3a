//===- Unicode.cpp - UTF-8 and the classes of code points -----------------===//

#include "buddy/Unicode.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

using namespace buddy;

namespace {

#include "UnicodeTables.inc"

/// Class sets by code point, in blocks of 128; a block that is all of one set is shared.
class ClassTable {
public:
  ClassTable() {
    std::array<std::uint8_t, blockSize> block{};
    std::size_t run = 0;
    for (std::size_t begin = 0; begin < codePoints; begin += blockSize) {
      for (std::size_t i = 0; i < blockSize; ++i) {
        while (run + 1 < std::size(classRuns) && classRuns[run + 1] >> 8 <= begin + i)
          ++run;
        block[i] = static_cast<std::uint8_t>(classRuns[run] & 0xff);
      }
      const bool uniform = std::count(block.begin(), block.end(), block[0]) == blockSize;
      std::uint16_t &shared = uniformBlocks[block[0]];
      if (!uniform || shared == 0) {
        const auto index = static_cast<std::uint16_t>(sets.size() / blockSize);
        sets.insert(sets.end(), block.begin(), block.end());
        blocks[begin / blockSize] = index;
        if (uniform)
          shared = index;
      } else {
        blocks[begin / blockSize] = shared;
      }
    }
  }

  std::uint32_t operator[](std::size_t codePoint) const {
    return classSets[sets[blocks[codePoint / blockSize] * std::size_t{blockSize} + codePoint % blockSize]];
  }

private:
  static constexpr std::size_t codePoints = 0x110000;
  static constexpr int blockSize = 128;
  std::array<std::uint16_t, codePoints / blockSize> blocks{};
  std::array<std::uint16_t, 256> uniformBlocks{}; // 0: none yet; block 0, ASCII, is not uniform
  std::vector<std::uint8_t> sets;
};

const ClassTable &classTable() {
  static const ClassTable table;
  return table;
}

constexpr char32_t replacementCharacter = 0xfffd;
constexpr std::string_view replacementUtf8 = "\xef\xbf\xbd";

} // namespace

std::uint32_t buddy::unicodeClass(char32_t codePoint) { return classTable()[codePoint]; }

Utf8Step buddy::readUtf8(std::string_view bytes) {
  const auto byteAt = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = byteAt(0);
  if (lead < 0x80)
    return {lead, 1, true, false};
  if (lead < 0xc2 || lead > 0xf4)
    return {replacementCharacter, 1, false, false};

  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF (Unicode, table 3-7).
  std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  char32_t codePoint = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size())
      return {replacementCharacter, i, false, true};
    if (byteAt(i) < low || byteAt(i) > high)
      return {replacementCharacter, i, false, false};
    codePoint = codePoint << 6 | (byteAt(i) & 0x3fU);
    low = 0x80;
    high = 0xbf;
  }
  return {codePoint, length, true, false};
}

ClassifiedChar buddy::classifyNext(std::string_view text, std::size_t position) {
  const auto lead = static_cast<std::uint8_t>(text[position]);
  if (lead < 0x80)
    return {lead, unicodeClass(lead), 1};
  const Utf8Step step = readUtf8(text.substr(position, 4));
  if (!step.valid)
    return {replacementCharacter, 0, 1};
  return {step.codePoint, unicodeClass(step.codePoint), step.length};
}

ClassifiedChar buddy::classifyPrevious(std::string_view text, std::size_t position) {
  for (std::size_t length = 1; length <= 4 && length <= position; ++length) {
    const Utf8Step step = readUtf8(text.substr(position - length, length));
    if (step.valid && step.length == length)
      return {step.codePoint, unicodeClass(step.codePoint), length};
  }
  return {replacementCharacter, 0, 1};
}

bool buddy::isValidUtf8(std::string_view text, std::size_t *position) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = readUtf8(text.substr(i));
    if (!step.valid) {
      if (position)
        *position = i;
      return false;
    }
    i += step.length;
  }
  return true;
}

std::string buddy::replaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = readUtf8(bytes.substr(i));
    out += step.valid ? bytes.substr(i, step.length) : replacementUtf8;
    i += step.length;
  }
  return out;
}

void buddy::appendUtf8(std::string &out, char32_t codePoint) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  const auto code = static_cast<std::uint32_t>(codePoint);
  if (code < 0x80)
    return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}
