//===- TextPreTokenizer.h - Cutting text into pre-tokens ------------------===//

#ifndef BUDDY_TEXTPRETOKENIZER_H
#define BUDDY_TEXTPRETOKENIZER_H

#include "VocabFile.h"

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

/// Applies a model's pre-tokenizer steps, one after the other, each to every piece that the one before left.
class PreTokenizer {
public:
  explicit PreTokenizer(std::vector<PreTokenizerStep> inOrder);

  /// Replaces `pieces` by the pre-tokens of `text`. They point into `text` or into `storage`. `firstBytes`: how
  /// many bytes of `text` come from the very beginning of what was written; normalisers make none or several of it.
  void split(std::string_view text, std::size_t firstBytes, std::vector<std::string_view> &pieces,
             std::deque<std::string> &storage) const;

  /// Whether any step asks for `firstBytes`.
  bool asksForFirst() const;

private:
  std::vector<PreTokenizerStep> steps;
};

} // namespace buddy

#endif // BUDDY_TEXTPRETOKENIZER_H
