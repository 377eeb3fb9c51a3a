//===- Output.h - Standard output, and text to write to it ----------------===//

#ifndef BUDDY_APPS_LLAMA_OUTPUT_H
#define BUDDY_APPS_LLAMA_OUTPUT_H

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace buddy::llama {

/// Thrown when there is nothing left to do: whoever reads standard output has gone, or the user left.
struct QuietExit {};

/// Writes to standard output at once. Throws QuietExit, or Error when it can not be written for another reason.
void print(std::string_view text);

/// Passes on text that comes in pieces, up to where a stop string begins. Text that may be the beginning of a stop
/// string is held back until it is known.
class StopFilter {
public:
  StopFilter(std::vector<std::string> stopStrings, std::function<void(std::string_view)> receiver);

  /// True once a stop string is complete; nothing of it was passed on.
  bool push(std::string_view piece);

  /// Passes on what is held back: no stop string came.
  void finish();

  /// All that was passed on.
  const std::string &text() const noexcept { return passed; }

private:
  void pass(std::size_t bytes);
  std::size_t heldBack() const;

  std::vector<std::string> stops;
  std::function<void(std::string_view)> receive;
  std::string held, passed;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_OUTPUT_H
