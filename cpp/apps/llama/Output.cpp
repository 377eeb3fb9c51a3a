//===- Output.cpp - Standard output, and text to write to it --------------===//

#include "Output.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

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

StopFilter::StopFilter(std::vector<std::string> stopStrings, std::function<void(std::string_view)> receiver)
    : stops(std::move(stopStrings)), receive(std::move(receiver)) {}

bool StopFilter::push(std::string_view piece) {
  held += piece;
  // Of the stop strings that are complete, the one that ended first counts: so it does not matter how the text was cut
  // into tokens.
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string &stop : stops) {
    const std::size_t at = held.find(stop);
    if (at != std::string::npos && std::pair(at + stop.size(), at) < std::pair(end, begin))
      begin = at, end = at + stop.size();
  }
  if (begin != std::string::npos) {
    pass(begin);
    held.clear();
    return true;
  }
  pass(held.size() - heldBack());
  return false;
}

void StopFilter::finish() { pass(held.size()); }

void StopFilter::pass(std::size_t bytes) {
  if (bytes == 0)
    return;
  passed.append(held, 0, bytes);
  receive(std::string_view(held).substr(0, bytes));
  held.erase(0, bytes);
}

/// The length of the longest end of the text that is the beginning of a stop string.
std::size_t StopFilter::heldBack() const {
  std::size_t longest = 0;
  for (const std::string &stop : stops)
    for (std::size_t size = std::min(stop.size() - 1, held.size()); size > longest; --size)
      if (held.compare(held.size() - size, size, stop, 0, size) == 0)
        longest = size;
  return longest;
}
