//===- Unicode.h - UTF-8 checks -------------------------------------------===//
//
// What a program needs before it hands bytes to Text: is this UTF-8, and if not, where does it stop being so.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_UNICODE_H
#define BUDDY_UNICODE_H

#include <cstddef>
#include <string>
#include <string_view>

namespace buddy {

/// True when `text` is well-formed UTF-8 (no surrogates, no overlong forms). Otherwise `*position`, if given, is the
/// offset in bytes of the first byte that does not belong to a whole character.
bool isValidUtf8(std::string_view text, std::size_t *position = nullptr);

/// `bytes` as UTF-8 with one U+FFFD for each maximal ill-formed part, as Unicode recommends and the reference
/// tokenizers do.
std::string replaceInvalidUtf8(std::string_view bytes);

} // namespace buddy

#endif // BUDDY_UNICODE_H
