//===- SafetensorsHeader.h - The header of a safetensors file -------------===//
//
// The format: 8 bytes little-endian length of the header, the header (JSON), the data section. The header maps tensor
// names to {"dtype", "shape", "data_offsets": [begin, end]} and "__metadata__" to strings. Offsets count from the data
// section's start; the ranges cover it without holes or overlaps.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_CONTAINERS_SAFETENSORSHEADER_H
#define BUDDY_CONTAINERS_SAFETENSORSHEADER_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace buddy {

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::uint64_t dataBytes = 0; // length of the data section
};

/// Parses the JSON text of a header and checks every tensor in it. Throws Error with a clause that says what is wrong
/// and at which byte of the header; the caller adds the file.
SafetensorsHeader parseSafetensorsHeader(std::string_view json);

} // namespace buddy

#endif // BUDDY_CONTAINERS_SAFETENSORSHEADER_H
