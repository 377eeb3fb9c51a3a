//===- TextAdded.cpp - Finding added tokens in text -----------------------===//

#include "TextAdded.h"
#include "UnicodeClasses.h"

#include <algorithm>
#include <string>

using namespace buddy;

/// Answers, for places that only move to the right, which stretch they lie in.
class AddedTokens::Allowed {
public:
  explicit Allowed(const std::vector<Stretch> &all) : stretches(all) {}

  /// The stretch that holds the byte at `position`. Calls come with positions that do not fall.
  const Stretch &at(std::size_t position) {
    while (stretches[current].end <= position)
      ++current;
    return stretches[current];
  }

private:
  const std::vector<Stretch> &stretches;
  std::size_t current = 0;
};

namespace {

std::size_t spacesBefore(std::string_view text, std::size_t position, std::size_t limit) {
  while (position > limit) {
    const ClassifiedChar c = classifyPrevious(text, position);
    if (!c.is(UnicodeSpace))
      break;
    position -= c.length;
  }
  return std::max(position, limit);
}

std::size_t spacesAfter(std::string_view text, std::size_t position) {
  while (position < text.size()) {
    const ClassifiedChar c = classifyNext(text, position);
    if (!c.is(UnicodeSpace))
      break;
    position += c.length;
  }
  return position;
}

bool standsAlone(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !classifyPrevious(text, begin).is(UnicodeWord)) &&
         (end == text.size() || !classifyNext(text, end).is(UnicodeWord));
}

} // namespace

AddedTokens::AddedTokens(const VocabFile &vocab) {
  for (const AddedToken &token : vocab.added) {
    const auto id = static_cast<std::size_t>(token.id);
    const std::uint8_t flags = vocab.flags[id];
    const bool special = vocab.types[id] == TokenType::Control || vocab.types[id] == TokenType::Unknown;
    Set &set = flags & TokenIsNormalized ? normalized : plain;
    set.entries.push_back({token.spelling, token.id, flags, special});
  }
  index(plain);
  index(normalized);
}

void AddedTokens::index(Set &set) {
  std::sort(set.entries.begin(), set.entries.end(),
            [](const Entry &a, const Entry &b) { return a.spelling < b.spelling; });
  for (std::size_t i = 1; i < set.entries.size(); ++i)
    if (set.entries[i].spelling == set.entries[i - 1].spelling)
      throw VocabDamage("two of its added tokens, " + std::to_string(set.entries[i - 1].id) + " and " +
                        std::to_string(set.entries[i].id) + ", are both spelled " +
                        quotedToken(set.entries[i].spelling));
  for (const Entry &entry : set.entries)
    ++set.firstByte[std::size_t{static_cast<std::uint8_t>(entry.spelling[0])} + 1];
  for (std::size_t i = 1; i < set.firstByte.size(); ++i)
    set.firstByte[i] += set.firstByte[i - 1];
}

/// The longest entry that is spelled at `position`. One that is special counts only within a single stretch: across
/// a border, what one side wrote must not become a token together with the other side's text.
const AddedTokens::Entry *AddedTokens::longestAt(const Set &set, std::string_view text, std::size_t position,
                                                 Allowed &allowed) {
  const auto lead = static_cast<std::uint8_t>(text[position]);
  auto first = set.entries.begin() + set.firstByte[lead];
  auto last = set.entries.begin() + set.firstByte[std::size_t{lead} + 1];
  const Entry *longest = nullptr;
  for (std::size_t depth = 1; first != last; ++depth) {
    // Here all of [first, last) begin with the text's next `depth` bytes; a shorter spelling sorts first.
    if (first->spelling.size() == depth) {
      if (!first->special || position + depth <= allowed.at(position).end)
        longest = &*first;
      ++first;
    }
    if (position + depth == text.size())
      break;
    const char next = text[position + depth];
    const auto below = [&](const Entry &entry, char c) {
      return static_cast<std::uint8_t>(entry.spelling[depth]) < static_cast<std::uint8_t>(c);
    };
    const auto above = [&](char c, const Entry &entry) {
      return static_cast<std::uint8_t>(c) < static_cast<std::uint8_t>(entry.spelling[depth]);
    };
    first = std::lower_bound(first, last, next, below);
    last = std::upper_bound(first, last, next, above);
  }
  return longest;
}

/// The reference's find_matches: an entry that may not match here is passed over with all its text.
std::vector<TextPart> AddedTokens::find(const Set &set, std::string_view text, const std::vector<Stretch> &stretches) {
  std::vector<TextPart> out;
  if (set.entries.empty()) {
    if (!text.empty())
      out.push_back({0, text.size(), -1});
    return out;
  }
  Allowed allowed(stretches);
  std::size_t pendingFrom = 0;
  std::size_t spacesFrom = 0, spacesTo = 0; // a run of spaces that was measured already
  for (std::size_t position = 0; position < text.size();) {
    const Entry *entry = longestAt(set, text, position, allowed);
    if (!entry) {
      ++position;
      continue;
    }
    std::size_t begin = position;
    std::size_t end = position + entry->spelling.size();
    position = end;
    if (entry->special && !allowed.at(begin).parseSpecial)
      continue;
    if ((entry->flags & TokenIsSingleWord) && !standsAlone(text, begin, end))
      continue;
    if (entry->flags & TokenStripsLeft)
      begin = begin > pendingFrom ? spacesBefore(text, begin, pendingFrom) : pendingFrom;
    if (entry->flags & TokenStripsRight) {
      if (end < spacesFrom || end > spacesTo) {
        spacesFrom = end;
        spacesTo = spacesAfter(text, end);
      }
      end = spacesTo;
    }
    if (begin >= end) // all of it was taken as the spaces behind the token before
      continue;
    if (pendingFrom < begin)
      out.push_back({pendingFrom, begin, -1});
    out.push_back({begin, end, entry->id});
    pendingFrom = end;
  }
  if (pendingFrom < text.size())
    out.push_back({pendingFrom, text.size(), -1});
  return out;
}

std::vector<TextPart> AddedTokens::split(std::string_view text, const std::vector<Stretch> &stretches) const {
  return find(plain, text, stretches);
}

std::vector<TextPart> AddedTokens::splitNormalized(std::string_view text, const std::vector<Stretch> &stretches) const {
  return find(normalized, text, stretches);
}
