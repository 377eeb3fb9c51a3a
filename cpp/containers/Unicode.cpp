//===- Unicode.cpp - UTF-8 and the classes of code points -----------------===//

#include "buddy/Unicode.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <array>
#include <iterator>

using namespace buddy;

namespace {

constexpr std::uint32_t classRuns[] = {
#include "UnicodeTables.inc"
};

constexpr std::size_t directSize = 256;

/// The classes of the first code points, so that most text never searches.
constexpr std::array<std::uint8_t, directSize> makeDirect() {
  std::array<std::uint8_t, directSize> table{};
  std::size_t run = 0;
  for (std::size_t codePoint = 0; codePoint < directSize; ++codePoint) {
    while (classRuns[run + 1] >> 8 <= codePoint)
      ++run;
    table[codePoint] = static_cast<std::uint8_t>(classRuns[run] & 0xff);
  }
  return table;
}

constexpr std::array<std::uint8_t, directSize> direct = makeDirect();

constexpr char32_t replacementCharacter = 0xfffd;
constexpr std::string_view replacementUtf8 = "\xef\xbf\xbd";

} // namespace

std::uint8_t buddy::unicodeClass(char32_t codePoint) {
  if (codePoint < directSize)
    return direct[codePoint];
  const std::uint32_t key = static_cast<std::uint32_t>(codePoint) << 8 | 0xff;
  return static_cast<std::uint8_t>(*std::prev(std::upper_bound(std::begin(classRuns), std::end(classRuns), key)) &
                                   0xff);
}

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
    return {lead, direct[lead], 1};
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
