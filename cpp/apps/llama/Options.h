//===- Options.h - The command line ---------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_OPTIONS_H
#define BUDDY_APPS_LLAMA_OPTIONS_H

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "Generation.h"
#include "Session.h"

namespace buddy::llama {

/// Wrong usage; what() is a sentence on the option that is wrong.
class UsageError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// The command line: what opens the model, what each generation depends on, and what only this program knows.
struct Options {
  SessionOptions session;
  GenerationOptions generation;

  // Where the prompt comes from; standard input when none is given.
  std::optional<std::string> prompt, promptFile;
  std::optional<std::vector<std::int32_t>> ids;

  bool chat = false;
  std::optional<std::string> system; // the chat's system message

  bool stream = true, json = false, quiet = false;
  bool help = false, version = false;
  std::string logitsFile;  // empty: none
  std::string promptCache; // the same
  bool profile = false;    // tell the time of each kernel
  bool warmUp = false;     // evaluate once before the clock starts
};

/// Throws UsageError.
Options parseOptions(int argc, char **argv);

std::string helpText();

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_OPTIONS_H
