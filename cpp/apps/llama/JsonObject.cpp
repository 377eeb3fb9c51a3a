//===- JsonObject.cpp - One JSON object, written ---------------------===//

#include "JsonObject.h"

#include <cmath>

using namespace buddy::llama;

static void appendString(std::string &out, std::string_view text) {
  out += '"';
  for (char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (code < 0x20 || code == 0x7f) {
      out += "\\u00";
      out += "0123456789abcdef"[code >> 4];
      out += "0123456789abcdef"[code & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void JsonObject::begin(std::string_view name) {
  if (!members.empty())
    members += ", ";
  appendString(members, name);
  members += ": ";
}

void JsonObject::add(std::string_view name, std::string_view value) {
  begin(name);
  appendString(members, value);
}

void JsonObject::add(std::string_view name, std::int64_t value) {
  begin(name);
  members += std::to_string(value);
}

void JsonObject::add(std::string_view name, double value) {
  begin(name);
  // Written as two integers: no locale has a say in the decimal point.
  const auto millionths = static_cast<std::int64_t>(std::llround(std::fabs(value) * 1e6));
  const std::string fraction = std::to_string(millionths % 1'000'000);
  members += value < 0 && millionths ? "-" : "";
  members += std::to_string(millionths / 1'000'000) + "." + std::string(6 - fraction.size(), '0') + fraction;
}

void JsonObject::add(std::string_view name, const std::vector<std::int32_t> &values) {
  begin(name);
  members += '[';
  for (std::size_t i = 0; i < values.size(); ++i)
    members += (i ? ", " : "") + std::to_string(values[i]);
  members += ']';
}

void JsonObject::add(std::string_view name, const std::vector<JsonObject> &values) {
  begin(name);
  members += '[';
  for (std::size_t i = 0; i < values.size(); ++i)
    members += (i ? ", " : "") + values[i].text();
  members += ']';
}

void JsonObject::addNull(std::string_view name) {
  begin(name);
  members += "null";
}
