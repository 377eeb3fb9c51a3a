//===- DisplayWidth.h - Columns that characters take on a terminal --------===//

#ifndef BUDDY_APPS_LLAMA_DISPLAYWIDTH_H
#define BUDDY_APPS_LLAMA_DISPLAYWIDTH_H

namespace buddy::llama {

/// 0 for what combines with the character before it, 2 for wide East Asian characters and emoji, 1 for the rest. It is
/// what the C library's wcwidth says in a UTF-8 locale, where terminals agree, and needs no locale.
int displayWidth(char32_t codePoint) noexcept;

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_DISPLAYWIDTH_H
