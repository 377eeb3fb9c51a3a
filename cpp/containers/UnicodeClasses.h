//===- UnicodeClasses.h - Code points and their classes -------------------===//

#ifndef BUDDY_UNICODECLASSES_H
#define BUDDY_UNICODECLASSES_H

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace buddy {

/// Bits as in UnicodeTables.inc.
enum UnicodeClass : std::uint8_t {
  UnicodeLetter = 1,  // \p{L} of the pre-tokenizers' regex engine
  UnicodeNumber = 2,  // \p{N} of the same
  UnicodeSpace = 4,   // \s
  UnicodeNumeric = 8, // what the Digits pre-tokenizer isolates: a newer table than \p{N}'s
  UnicodeWord = 16    // \w around added tokens
};

/// What stands at the beginning of some bytes.
struct Utf8Step {
  char32_t codePoint; // meaningless unless valid
  std::size_t length; // bytes of the character, or of the maximal ill-formed part; at least 1
  bool valid;
  bool truncated; // ill-formed only because the bytes end
};

/// Reads one character of `bytes`, which must not be empty.
Utf8Step readUtf8(std::string_view bytes);

/// UnicodeClass bits of a code point.
std::uint8_t unicodeClass(char32_t codePoint);

/// One character as pre-tokenizers see it. A byte that is not part of a character counts as a symbol of its own.
struct ClassifiedChar {
  char32_t codePoint;
  std::uint8_t classes;
  std::size_t length;
  bool is(std::uint8_t bits) const { return (classes & bits) != 0; }
};
ClassifiedChar classifyNext(std::string_view text, std::size_t position);

/// The same for the character that ends before `position` (at least 1).
ClassifiedChar classifyPrevious(std::string_view text, std::size_t position);

} // namespace buddy

#endif // BUDDY_UNICODECLASSES_H
