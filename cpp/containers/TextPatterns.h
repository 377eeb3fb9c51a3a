//===- TextPatterns.h - The regexes of pre-tokenizers ---------------------===//

#ifndef BUDDY_TEXTPATTERNS_H
#define BUDDY_TEXTPATTERNS_H

#include "VocabFile.h"

#include <cstddef>
#include <string_view>

namespace buddy {

/// The end of the piece that `pattern` cuts at `begin`, whether it matches there or is what lies before a match.
std::size_t patternEnd(SplitPattern pattern, std::string_view text, std::size_t begin);

/// The same for digits: each one alone if `individually`, else in runs.
std::size_t digitsEnd(std::string_view text, std::size_t begin, bool individually);

} // namespace buddy

#endif // BUDDY_TEXTPATTERNS_H
