//===- Output.cpp - Standard output ---------------------------------------===//

#include "Output.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <unistd.h>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

void llama::print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno == EPIPE)
      throw QuietExit();
    else if (errno != EINTR)
      throw Error(std::string("standard output can not be written (") + std::strerror(errno) + ")");
  }
}
