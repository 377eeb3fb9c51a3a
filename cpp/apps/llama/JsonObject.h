//===- JsonObject.h - One JSON object, written -----------------------===//

#ifndef BUDDY_APPS_LLAMA_JSONOBJECT_H
#define BUDDY_APPS_LLAMA_JSONOBJECT_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace buddy::llama {

/// Members are written in the order in which they are added. Nothing depends on the locale.
class JsonObject {
public:
  /// `value` must be valid UTF-8.
  void add(std::string_view name, std::string_view value);
  void add(std::string_view name, const char *value) { add(name, std::string_view(value)); }
  void add(std::string_view name, std::int64_t value);
  /// Six digits behind the point; `value` must be finite.
  void add(std::string_view name, double value);
  void add(std::string_view name, const std::vector<std::int32_t> &values);
  void add(std::string_view name, const std::vector<JsonObject> &values);
  void addNull(std::string_view name);

  /// The object on one line.
  std::string text() const { return "{" + members + "}"; }

private:
  void begin(std::string_view name);

  std::string members;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_JSONOBJECT_H
