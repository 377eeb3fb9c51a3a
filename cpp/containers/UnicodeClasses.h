//===- UnicodeClasses.h - Code points and their classes -------------------===//

#ifndef BUDDY_UNICODECLASSES_H
#define BUDDY_UNICODECLASSES_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace buddy {

/// Bits as in UnicodeTables.inc. They follow several versions of Unicode: those of the libraries that ask for them.
enum UnicodeClass : std::uint32_t {
  UnicodeLetter = 1,             // \p{L} of the pre-tokenizers' regex engine
  UnicodeNumber = 2,             // \p{N} of the same
  UnicodeSpace = 4,              // \s
  UnicodeNumeric = 8,            // what the Digits pre-tokenizer isolates: a newer table than \p{N}'s
  UnicodeWord = 16,              // \w around added tokens and in the Whitespace pre-tokenizer
  UnicodeUpper = 32,             // \p{Lu}, \p{Lt}
  UnicodeLower = 64,             // \p{Ll}
  UnicodeMark = 128,             // \p{M}
  UnicodePunctuation = 256,      // \p{P}
  UnicodeSymbol = 512,           // \p{S}
  UnicodeBertPunctuation = 1024, // what the Punctuation and BERT's pre-tokenizers isolate
  UnicodeWhitespace = 2048,      // Rust's char::is_whitespace
  UnicodeBertRemoved = 4096,     // what BERT's clean_text removes
  UnicodeBertSpace = 8192,       // what it turns into a space
  UnicodeBertAccent = 16384,     // what BERT's strip_accents removes
  UnicodeAccent = 32768,         // what StripAccents removes
  UnicodeChinese = 65536         // what BERT puts spaces around
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

/// Appends a code point that is not a surrogate.
void appendUtf8(std::string &out, char32_t codePoint);

/// UnicodeClass bits of a code point.
std::uint32_t unicodeClass(char32_t codePoint);

/// One character as pre-tokenizers see it. A byte that is not part of a character counts as a symbol of its own.
struct ClassifiedChar {
  char32_t codePoint;
  std::uint32_t classes;
  std::size_t length;
  bool is(std::uint32_t bits) const { return (classes & bits) != 0; }
};
ClassifiedChar classifyNext(std::string_view text, std::size_t position);

/// The same for the character that ends before `position` (at least 1).
ClassifiedChar classifyPrevious(std::string_view text, std::size_t position);

} // namespace buddy

#endif // BUDDY_UNICODECLASSES_H
