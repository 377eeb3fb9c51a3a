//===- Options.h - The command line ---------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_OPTIONS_H
#define BUDDY_APPS_LLAMA_OPTIONS_H

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "Sampler.h"

namespace buddy::llama {

/// Wrong usage; what() is a sentence on the option that is wrong.
class UsageError : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string modelDir; // empty: the program's own folder

  // Where the prompt comes from; standard input when none is given.
  std::optional<std::string> prompt, promptFile;
  std::optional<std::vector<std::int32_t>> ids;

  bool chat = false;
  std::optional<std::string> system; // the chat's system message

  std::int64_t maxTokens = 128; // -1: until the model stops
  std::int64_t context = 0;     // positions in the cache
  std::int64_t ubatch = 512;    // tokens of a prompt that are evaluated at once
  int threads = 0;              // 0: the CPUs that the process may use
  SamplerSettings sampler;
  std::vector<std::string> stops;
  bool ignoreEnd = false;

  bool stream = true, json = false, quiet = false;
  bool verify = false, help = false, version = false;
  std::string logitsFile; // empty: none
};

/// Throws UsageError.
Options parseOptions(int argc, char **argv);

std::string helpText();

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_OPTIONS_H
