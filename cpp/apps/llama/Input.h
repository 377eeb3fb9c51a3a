//===- Input.h - Where prompts come from ----------------------------------===//

#ifndef BUDDY_APPS_LLAMA_INPUT_H
#define BUDDY_APPS_LLAMA_INPUT_H

#include <optional>
#include <string>

#include "Options.h"

namespace buddy::llama {

/// The text of the prompt, out of -p, -f or standard input, as it is. Throws Error when it can not be read or is no
/// UTF-8.
std::string readPrompt(const Options &options);

/// Throws Error unless `text` is valid UTF-8; `what` names it in the message.
void requireUtf8(const std::string &text, const std::string &what);

/// Lines of standard input.
class LineReader {
public:
  /// The next line without its end; nullopt at the end of the input, or when Ctrl-C comes while waiting.
  std::optional<std::string> next();

private:
  std::string buffer;
  bool ended = false;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_INPUT_H
