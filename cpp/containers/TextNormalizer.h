//===- TextNormalizer.h - What happens to text before it is cut -----------===//

#ifndef BUDDY_TEXTNORMALIZER_H
#define BUDDY_TEXTNORMALIZER_H

#include "UnicodeNormalization.h"
#include "VocabFile.h"

#include <string_view>

namespace buddy {

/// Applies a model's normalisers, one after the other, in time linear in the text (but for sorting runs of marks).
class Normalizer {
public:
  explicit Normalizer(const VocabFile &vocab) : steps(vocab.normalizers) {}

  bool empty() const { return steps.empty(); }

  /// `text` as it is after all steps, traced to `text` if so asked.
  TracedText apply(std::string_view text, bool traced) const;

private:
  const std::vector<NormalizerStep> &steps;
};

} // namespace buddy

#endif // BUDDY_TEXTNORMALIZER_H
