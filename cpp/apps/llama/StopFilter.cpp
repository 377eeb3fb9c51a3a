//===- StopFilter.cpp - Text up to a stop string --------------------------===//

#include "StopFilter.h"

#include <algorithm>

using namespace buddy::llama;

std::string StopFilter::push(std::string_view piece) {
  held += piece;
  // Of the stop strings that are complete, the one that ended first counts: so it does not matter how the text was cut
  // into tokens.
  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string &stop : stops) {
    const std::size_t at = held.find(stop);
    if (at != std::string::npos && std::pair(at + stop.size(), at) < std::pair(end, begin))
      begin = at, end = at + stop.size();
  }
  if (begin == std::string::npos)
    return take(held.size() - heldBack());
  found = true;
  std::string text = take(begin);
  held.clear();
  return text;
}

std::string StopFilter::take(std::size_t bytes) {
  std::string text = held.substr(0, bytes);
  held.erase(0, bytes);
  return text;
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
