//===- VocabReader.h - Bounds-checked reading of little-endian fields -----===//

#ifndef BUDDY_VOCABREADER_H
#define BUDDY_VOCABREADER_H

#include "VocabFile.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace buddy {

/// Reads fields one after the other and never past the end.
class VocabReader {
public:
  VocabReader(std::string_view contents, const char *name) : bytes(contents), section(name) {}

  std::string_view take(std::uint64_t size) {
    if (size > bytes.size())
      throw VocabDamage(std::string("its section ") + section + " ends too early");
    const std::string_view taken = bytes.substr(0, static_cast<std::size_t>(size));
    bytes.remove_prefix(taken.size());
    return taken;
  }

  std::uint8_t u8() { return static_cast<std::uint8_t>(take(1)[0]); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(integer(4)); }
  std::uint64_t u64() { return integer(8); }
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::string string() { return std::string(take(u32())); }

  /// A number of records that are each at least `recordSize` bytes long, so that it can't be absurd.
  std::uint32_t count(std::uint64_t recordSize) {
    const std::uint32_t n = u32();
    if (n * recordSize > bytes.size())
      throw VocabDamage(std::string("its section ") + section + " says that it holds " + std::to_string(n) +
                        " records, which do not fit in it");
    return n;
  }

  void finish() const {
    if (!bytes.empty())
      throw VocabDamage(std::string("its section ") + section + " is longer than its contents");
  }

private:
  std::uint64_t integer(std::size_t size) {
    const std::string_view field = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
      value |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(field[i])) << (8 * i);
    return value;
  }

  std::string_view bytes;
  const char *section;
};

} // namespace buddy

#endif // BUDDY_VOCABREADER_H
