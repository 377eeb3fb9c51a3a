//===- StopFilter.h - Text up to a stop string ----------------------------===//

#ifndef BUDDY_APPS_LLAMA_STOPFILTER_H
#define BUDDY_APPS_LLAMA_STOPFILTER_H

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace buddy::llama {

/// Passes on text that comes in pieces, up to where a stop string begins. Text that may be the beginning of a stop
/// string is held back until it is known.
class StopFilter {
public:
  explicit StopFilter(std::vector<std::string> stopStrings) : stops(std::move(stopStrings)) {}

  /// The text that is certain now. Once a stop string is complete, stopped() is true and nothing of it was passed on.
  std::string push(std::string_view piece);
  bool stopped() const noexcept { return found; }

  /// What is held back: no stop string came.
  std::string finish() { return std::exchange(held, {}); }

private:
  std::string take(std::size_t bytes);
  std::size_t heldBack() const;

  std::vector<std::string> stops;
  std::string held;
  bool found = false;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_STOPFILTER_H
