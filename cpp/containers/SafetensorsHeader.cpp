//===- SafetensorsHeader.cpp - The header of a safetensors file -----------===//

#include "SafetensorsHeader.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "buddy/Error.h"

using namespace buddy;

namespace {

/// One tensor's place in the data section.
struct Range {
  std::string name;
  std::uint64_t begin, end;
};

/// Reads exactly the JSON that a safetensors header may hold: objects, arrays, strings and natural numbers.
class Reader {
public:
  explicit Reader(std::string_view json) : text(json) {}

  [[noreturn]] void fail(const std::string &what) const { throw Error(what + " at byte " + std::to_string(at)); }

  void skipSpace() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t'))
      ++at;
  }

  bool consume(char c) {
    skipSpace();
    if (at == text.size() || text[at] != c)
      return false;
    ++at;
    return true;
  }

  void expect(char c) {
    if (!consume(c))
      fail(std::string("'") + c + "' is missing");
  }

  void expectEnd() {
    skipSpace();
    if (at != text.size())
      fail("more text follows the header's end");
  }

  /// Calls `member(key)` for every member of an object; keys must differ.
  template <typename Member> void object(Member member) {
    expect('{');
    if (consume('}'))
      return;
    do {
      std::string key = string();
      expect(':');
      member(std::move(key));
    } while (consume(','));
    expect('}');
  }

  std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> result;
    expect('[');
    if (consume(']'))
      return result;
    do {
      if (result.size() == maxRank)
        fail("an array is too long");
      result.push_back(number());
    } while (consume(','));
    expect(']');
    return result;
  }

  std::string string() {
    expect('"');
    std::string result;
    while (true) {
      const char c = next();
      if (c == '"')
        return result;
      if (static_cast<unsigned char>(c) < 0x20)
        fail("a control character stands in a string");
      if (c == '\\')
        appendEscape(result);
      else
        result += c;
    }
  }

private:
  static constexpr std::size_t maxRank = 64;

  char next() {
    if (at == text.size())
      fail("a string has no end");
    return text[at++];
  }

  std::uint64_t number() {
    skipSpace();
    const std::size_t start = at;
    std::uint64_t value = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      const std::uint64_t digit = static_cast<std::uint64_t>(text[at] - '0');
      if (value > (std::numeric_limits<std::int64_t>::max() - digit) / 10)
        fail("a number is too large");
      value = value * 10 + digit;
    }
    if (at == start)
      fail("a natural number is missing");
    if (text[start] == '0' && at - start > 1)
      fail("a number has a leading zero");
    return value;
  }

  std::uint32_t hexDigits() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = next();
      const std::size_t digit = std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? char(c + 32) : c);
      if (digit == std::string_view::npos)
        fail("a \\u escape is wrong");
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    return value;
  }

  void appendEscape(std::string &result) {
    static constexpr std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
    const char c = next();
    const std::size_t index = names.find(c);
    if (index != std::string_view::npos) {
      result += values[index];
      return;
    }
    if (c != 'u')
      fail("an escape is unknown");
    std::uint32_t code = hexDigits();
    if (code >= 0xD800 && code < 0xDC00) { // the first half of a surrogate pair
      if (next() != '\\' || next() != 'u')
        fail("half a surrogate pair stands alone");
      const std::uint32_t low = hexDigits();
      if (low < 0xDC00 || low >= 0xE000)
        fail("half a surrogate pair stands alone");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail("half a surrogate pair stands alone");
    }
    appendUtf8(result, code);
  }

  static void appendUtf8(std::string &result, std::uint32_t code) {
    if (code < 0x80) {
      result += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr unsigned lead[] = {0, 0xC0, 0xE0, 0xF0};
    result += static_cast<char>(lead[more] | (code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i)
      result += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }

  std::string_view text;
  std::size_t at = 0;
};

} // namespace

/// The size in bits of one element.
static std::uint64_t elementBits(const std::string &dtype) {
  static const std::map<std::string, std::uint64_t> bits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"I64", 64}, {"U64", 64},    {"F64", 64},    {"C64", 64}};
  const auto it = bits.find(dtype);
  if (it == bits.end())
    throw Error("the element type '" + dtype + "' is unknown");
  return it->second;
}

/// The size in bytes of a tensor.
static std::uint64_t tensorBytes(const std::string &name, const std::string &dtype,
                                 const std::vector<std::uint64_t> &shape) {
  std::uint64_t size = elementBits(dtype);
  for (std::uint64_t extent : shape) {
    if (extent && size > std::numeric_limits<std::uint64_t>::max() / extent)
      throw Error("the shape of tensor '" + name + "' is too large");
    size *= extent;
  }
  if (size % 8)
    throw Error("tensor '" + name + "' does not fill whole bytes");
  return size / 8;
}

static Range parseTensor(Reader &reader, std::string name) {
  std::string dtype;
  std::vector<std::uint64_t> shape, offsets;
  unsigned seen = 0;
  reader.object([&](const std::string &key) {
    const unsigned bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    if (!bit || (seen & bit))
      reader.fail("tensor '" + name + "' has an unknown or repeated field '" + key + "'");
    seen |= bit;
    if (bit == 1)
      dtype = reader.string();
    else
      (bit == 2 ? shape : offsets) = reader.numbers();
  });
  if (seen != 7 || offsets.size() != 2 || offsets[0] > offsets[1])
    reader.fail("tensor '" + name + "' lacks its dtype, shape or offsets");
  if (tensorBytes(name, dtype, shape) != offsets[1] - offsets[0])
    throw Error("tensor '" + name + "' has a shape that disagrees with its byte range");
  return {std::move(name), offsets[0], offsets[1]};
}

/// Names must differ; ranges in order of their begin must follow one another without holes. Returns the last end.
static std::uint64_t checkRanges(std::vector<Range> &ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.name < b.name; });
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].name == ranges[i - 1].name)
      throw Error("tensor '" + ranges[i].name + "' appears twice");
  std::sort(ranges.begin(), ranges.end(),
            [](const Range &a, const Range &b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::uint64_t end = 0;
  for (const Range &range : ranges) {
    if (range.begin != end)
      throw Error("tensor '" + range.name + "' leaves a hole or overlaps its neighbour");
    end = range.end;
  }
  return end;
}

SafetensorsHeader buddy::parseSafetensorsHeader(std::string_view json) {
  SafetensorsHeader header;
  std::vector<Range> ranges;
  Reader reader(json);
  bool metadataSeen = false;
  reader.object([&](std::string name) {
    if (name != "__metadata__") {
      ranges.push_back(parseTensor(reader, std::move(name)));
      return;
    }
    if (std::exchange(metadataSeen, true))
      reader.fail("'__metadata__' appears twice");
    reader.object([&](std::string key) {
      std::string value = reader.string();
      if (!header.metadata.emplace(key, std::move(value)).second)
        reader.fail("metadata '" + key + "' appears twice");
    });
  });
  reader.expectEnd();
  header.dataBytes = checkRanges(ranges);
  return header;
}
