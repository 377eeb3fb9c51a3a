//===- Sha256.h - SHA-256 (FIPS 180-4) ------------------------------------===//

#ifndef BUDDY_CONTAINERS_SHA256_H
#define BUDDY_CONTAINERS_SHA256_H

#include <cstddef>
#include <string>

namespace buddy {

/// The digest of `size` bytes as 64 lower-case hex digits.
std::string sha256Hex(const void *data, std::size_t size);

} // namespace buddy

#endif // BUDDY_CONTAINERS_SHA256_H
