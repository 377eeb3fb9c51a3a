//===- CacheFile.h - The caches of a session in a file --------------------===//
//
// What a prompt left in the key and value caches, so that another run need not evaluate it again. The file holds, all
// little-endian and without gaps:
//
//   8 bytes "BUDDYKVC"; u64 version; 64 hex digits each: ABI, model id, SHA-256
//   i64 layers, kv heads, bytes of a row, tokens
//   i32 ids (tokens); keys, then values (layer, kv head, token, bytes of a row): the filled positions alone
//
// The SHA-256 is that of all behind it.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_CACHEFILE_H
#define BUDDY_APPS_LLAMA_CACHEFILE_H

#include <string>

#include "Session.h"

namespace buddy::llama {

/// Fills a session's caches with what saveCaches wrote, as far as the context goes; session.ids() says what they hold
/// then. A file that does not exist changes nothing. Throws Error for one that is foreign, cut short, damaged, or of
/// another model or program, and for a place where none could be saved.
void restoreCaches(Session &session, const std::string &path);

/// Writes a session's caches beside the file and gives it the name when it is complete; of a symbolic link, the file
/// that it leads to. A file that is there keeps its permissions. Does nothing when the caches are empty. Throws Error
/// when it can not be written.
void saveCaches(Session &session, const std::string &path);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_CACHEFILE_H
