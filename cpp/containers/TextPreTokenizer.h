//===- TextPreTokenizer.h - Cutting text into pre-tokens ------------------===//

#ifndef BUDDY_TEXTPRETOKENIZER_H
#define BUDDY_TEXTPRETOKENIZER_H

#include "VocabFile.h"

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

/// Applies a model's pre-tokenizer steps, one after the other, each to every piece that the one before left.
class PreTokenizer {
public:
  explicit PreTokenizer(std::vector<PreTokenizerStep> inOrder);

  /// Replaces `pieces` by the pre-tokens of `text`. They point into `text` or into `storage`. `isFirst`: nothing stood
  /// before `text`.
  void split(std::string_view text, bool isFirst, std::vector<std::string_view> &pieces,
             std::deque<std::string> &storage) const;

private:
  std::vector<PreTokenizerStep> steps;
};

} // namespace buddy

#endif // BUDDY_TEXTPRETOKENIZER_H
