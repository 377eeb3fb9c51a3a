//===- UnicodeNormalization.h - NFC, NFD, NFKC, NFKD, lower case ----------===//
//
// By the tables that `tokenizers` has, which are older than its classes.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_UNICODENORMALIZATION_H
#define BUDDY_UNICODENORMALIZATION_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

/// Text that is being written, with the place in the text before that each of its bytes comes from, if wanted.
struct TracedText {
  std::string text;
  bool traced = false;
  std::vector<std::uint32_t> origins; // ascending; as long as `text` if traced

  void append(std::string_view bytes, std::size_t origin) {
    text += bytes;
    if (traced)
      origins.insert(origins.end(), bytes.size(), static_cast<std::uint32_t>(origin));
  }
};

enum class NormalForm { Nfc, Nfd, Nfkc, Nfkd };

/// Appends `text` in a normal form. Bytes that are not UTF-8 stay as they are and part what stands beside them.
void appendNormalized(std::string_view text, NormalForm form, TracedText &out);

/// Appends `text` in lower case, each character by itself.
void appendLowerCase(std::string_view text, TracedText &out);

} // namespace buddy

#endif // BUDDY_UNICODENORMALIZATION_H
