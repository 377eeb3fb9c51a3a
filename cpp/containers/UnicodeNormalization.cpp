//===- UnicodeNormalization.cpp - NFC, NFD, NFKC, NFKD, lower case --------===//

#include "UnicodeNormalization.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <iterator>

using namespace buddy;

namespace {

struct Mapped {
  std::uint32_t codePoint, offset;
};
struct Composition {
  std::uint32_t first, second, result;
};
#include "NormalizationTables.inc"

constexpr char32_t hangulBase = 0xac00, leadBase = 0x1100, vowelBase = 0x1161, trailBase = 0x11a7;
constexpr std::uint32_t leads = 19, vowels = 21, trails = 28, syllables = leads * vowels * trails;

/// Whether code points have a class, a decomposition, or follow another in a composition: two bits of each at most
/// decide whether a text changes, so that most text is copied.
class Traits {
public:
  enum : std::uint8_t { Canonical = 1, Compatible = 2, Second = 4, Marks = 8 };

  Traits() : bits(limit) {
    for (const Mapped &entry : canonicalIndex)
      set(entry.codePoint, Canonical);
    for (const Mapped &entry : compatibleIndex)
      set(entry.codePoint, Compatible);
    for (const Composition &entry : compositions)
      set(entry.second, Second);
    for (std::size_t run = 0; run + 1 < std::size(combiningRuns); ++run)
      if (combiningRuns[run] & 0xff)
        for (std::uint32_t code = combiningRuns[run] >> 8; code < combiningRuns[run + 1] >> 8; ++code)
          set(code, Marks);
    for (std::uint32_t code = hangulBase; code < hangulBase + syllables; ++code)
      set(code, Canonical);
    for (std::uint32_t code = vowelBase; code < trailBase + trails; ++code)
      set(code, Second);
  }

  std::uint8_t operator[](char32_t codePoint) const { return codePoint < limit ? bits[codePoint] : 0; }

private:
  static constexpr std::size_t limit = 0x30000; // nothing above changes
  static_assert(std::rbegin(canonicalIndex)->codePoint < limit && std::rbegin(compatibleIndex)->codePoint < limit);
  void set(std::uint32_t code, std::uint8_t trait) { bits[code] = static_cast<std::uint8_t>(bits[code] | trait); }
  std::vector<std::uint8_t> bits;
};

const Traits &traits() {
  static const Traits table;
  return table;
}

std::uint8_t combiningClass(char32_t codePoint) {
  if (!(traits()[codePoint] & Traits::Marks))
    return 0;
  const std::uint32_t key = static_cast<std::uint32_t>(codePoint) << 8 | 0xff;
  const auto *run = std::upper_bound(std::begin(combiningRuns), std::end(combiningRuns), key);
  return static_cast<std::uint8_t>(*std::prev(run) & 0xff);
}

template <std::size_t IndexSize, std::size_t TextsSize>
const char32_t *findMapped(const Mapped (&index)[IndexSize], const char32_t (&texts)[TextsSize], char32_t codePoint) {
  const auto *found = std::lower_bound(std::begin(index), std::end(index), codePoint,
                                       [](const Mapped &entry, char32_t code) { return entry.codePoint < code; });
  return found != std::end(index) && found->codePoint == codePoint ? texts + found->offset : nullptr;
}

/// What two characters compose to, or 0.
char32_t compose(char32_t first, char32_t second) {
  const std::uint32_t lead = first - leadBase, vowel = second - vowelBase, trail = second - trailBase;
  if (lead < leads && vowel < vowels)
    return hangulBase + (lead * vowels + vowel) * trails;
  const std::uint32_t syllable = first - hangulBase;
  if (syllable < syllables && syllable % trails == 0 && trail > 0 && trail < trails)
    return first + trail;
  if (!(traits()[second] & Traits::Second))
    return 0;
  const Composition *found =
      std::lower_bound(std::begin(compositions), std::end(compositions), Composition{first, second, 0},
                       [](const Composition &a, const Composition &b) {
                         return a.first != b.first ? a.first < b.first : a.second < b.second;
                       });
  return found != std::end(compositions) && found->first == first && found->second == second ? found->result : 0;
}

/// Characters of a stretch that changes, in the order in which they will stand.
class Rewriter {
public:
  Rewriter(bool compatibly, bool composing) : compatible(compatibly), composes(composing) {}

  void add(char32_t codePoint, std::size_t origin) {
    const std::uint32_t syllable = codePoint - hangulBase;
    if (syllable < syllables) {
      put(leadBase + syllable / (vowels * trails), origin);
      put(vowelBase + syllable / trails % vowels, origin);
      if (syllable % trails)
        put(trailBase + syllable % trails, origin);
      return;
    }
    const std::uint8_t trait = traits()[codePoint];
    const char32_t *parts = nullptr;
    if (compatible && (trait & Traits::Compatible))
      parts = findMapped(compatibleIndex, compatibleTexts, codePoint);
    else if (trait & Traits::Canonical)
      parts = findMapped(canonicalIndex, canonicalTexts, codePoint);
    if (!parts)
      return put(codePoint, origin);
    for (; *parts; ++parts)
      put(*parts, origin);
  }

  void flush(TracedText &out) {
    sortMarks();
    if (composes)
      composeAll();
    std::size_t latest = 0; // origins must not fall, though marks change their places
    for (const Item &item : items) {
      std::string bytes;
      appendUtf8(bytes, item.codePoint);
      latest = std::max(latest, item.origin);
      out.append(bytes, latest);
    }
    items.clear();
  }

private:
  struct Item {
    char32_t codePoint;
    std::uint8_t combining;
    std::size_t origin;
  };

  void put(char32_t codePoint, std::size_t origin) { items.push_back({codePoint, combiningClass(codePoint), origin}); }

  void sortMarks() {
    for (std::size_t begin = 0; begin < items.size();) {
      std::size_t end = begin;
      while (end < items.size() && items[end].combining)
        ++end;
      const auto first = items.begin() + static_cast<std::ptrdiff_t>(begin);
      std::stable_sort(first, items.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const Item &a, const Item &b) { return a.combining < b.combining; });
      begin = end + 1;
    }
  }

  /// Unicode's canonical composition, in place.
  void composeAll() {
    std::size_t size = 0;
    Item *starter = nullptr;
    std::uint8_t last = 0; // class of what was kept last; 0: the starter itself
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item item = items[i];
      if (starter && (last == 0 || last < item.combining))
        if (const char32_t composed = compose(starter->codePoint, item.codePoint)) {
          starter->codePoint = composed;
          continue;
        }
      items[size] = item;
      last = item.combining;
      if (item.combining == 0)
        starter = &items[size];
      ++size;
    }
    items.resize(size);
  }

  std::vector<Item> items;
  bool compatible, composes;
};

} // namespace

void buddy::appendNormalized(std::string_view text, NormalForm form, TracedText &out) {
  const bool compatible = form == NormalForm::Nfkc || form == NormalForm::Nfkd;
  const bool composes = form == NormalForm::Nfc || form == NormalForm::Nfkc;
  const auto changing = static_cast<std::uint8_t>(
      Traits::Canonical | Traits::Marks | (compatible ? Traits::Compatible : 0) | (composes ? Traits::Second : 0));
  Rewriter rewriter(compatible, composes);
  const auto copy = [&](std::size_t begin, std::size_t end) {
    if (!out.traced) {
      out.text += text.substr(begin, end - begin);
      return;
    }
    for (; begin < end; ++begin)
      out.append(text.substr(begin, 1), begin);
  };
  std::size_t copied = 0; // what is before this is in `out` or in the rewriter
  std::size_t lastBegin = 0;
  bool rewriting = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = readUtf8(text.substr(i, 4));
    const bool changes = step.valid && step.codePoint >= 0x80 && (traits()[step.codePoint] & changing);
    if (changes) {
      if (!rewriting) { // the character before may compose with this one
        const std::size_t from = std::max(copied, lastBegin);
        copy(copied, from);
        if (from < i) {
          const Utf8Step before = readUtf8(text.substr(from, 4));
          if (before.valid)
            rewriter.add(before.codePoint, from);
          else
            copy(from, i);
        }
        rewriting = true;
      }
      rewriter.add(step.codePoint, i);
      copied = i + step.length;
    } else if (rewriting) {
      rewriter.flush(out);
      rewriting = false;
    }
    lastBegin = i;
    i += step.length;
  }
  if (rewriting)
    rewriter.flush(out);
  copy(copied, text.size());
}

void buddy::appendLowerCase(std::string_view text, TracedText &out) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<std::uint8_t>(text[i]);
    if (lead < 0x80) {
      const char lower = lead >= 'A' && lead <= 'Z' ? static_cast<char>(lead - 'A' + 'a') : text[i];
      out.append(std::string_view(&lower, 1), i++);
      continue;
    }
    const Utf8Step step = readUtf8(text.substr(i, 4));
    const char32_t *parts = step.valid ? findMapped(lowerIndex, lowerTexts, step.codePoint) : nullptr;
    if (!parts) {
      out.append(text.substr(i, step.length), i);
    } else {
      std::string bytes;
      for (; *parts; ++parts)
        appendUtf8(bytes, *parts);
      out.append(bytes, i);
    }
    i += step.length;
  }
}
