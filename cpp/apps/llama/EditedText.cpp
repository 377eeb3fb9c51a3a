//===- EditedText.cpp - A text with a cursor in it ------------------------===//

#include "EditedText.h"

#include <algorithm>
#include <utility>

#include "DisplayWidth.h"
#include "UnicodeClasses.h"

using namespace buddy;
using namespace buddy::llama;

void EditedText::set(std::string text) {
  content = std::move(text);
  position = content.size();
}

void EditedText::insert(std::string_view text) {
  content.insert(position, text);
  position += text.size();
}

void EditedText::erase(std::size_t begin, std::size_t end) {
  content.erase(begin, end - begin);
  position = begin;
}

/// Where the character at `at`, with what combines with it, ends.
std::size_t EditedText::after(std::size_t at) const {
  const std::string_view text = content;
  if (at == text.size())
    return at;
  at += readUtf8(text.substr(at)).length;
  while (at < text.size()) {
    const Utf8Step next = readUtf8(text.substr(at));
    if (displayWidth(next.codePoint) > 0)
      break;
    at += next.length;
  }
  return at;
}

/// Where the character that ends at `at` begins. Characters are short, so the line is walked from its beginning.
std::size_t EditedText::before(std::size_t at) const {
  const std::size_t newline = at == 0 ? std::string::npos : content.rfind('\n', at - 1);
  std::size_t begin = newline == std::string::npos ? 0 : newline;
  for (std::size_t next = begin; next < at; next = after(next))
    begin = next;
  return begin;
}

std::size_t EditedText::lineStart() const {
  const std::size_t newline = position == 0 ? std::string::npos : content.rfind('\n', position - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

std::size_t EditedText::lineEnd() const { return std::min(content.find('\n', position), content.size()); }

static bool isSpace(char c) { return c == ' ' || c == '\t' || c == '\n'; }

/// Words are what stands between spaces.
std::size_t EditedText::wordBefore() const {
  std::size_t at = position;
  while (at > 0 && isSpace(content[at - 1]))
    --at;
  while (at > 0 && !isSpace(content[at - 1]))
    --at;
  return at;
}

std::size_t EditedText::wordAfter() const {
  std::size_t at = position;
  while (at < content.size() && isSpace(content[at]))
    ++at;
  while (at < content.size() && !isSpace(content[at]))
    ++at;
  return at;
}

/// What is shown for a character, and how many columns it takes.
static std::pair<std::string, int> shown(std::string_view character) {
  const Utf8Step step = readUtf8(character);
  if (step.codePoint == '\t')
    return {"    ", 4};
  if (step.codePoint < 0x20 || step.codePoint == 0x7f)
    return {{'^', static_cast<char>(step.codePoint ^ 0x40)}, 2};
  if (step.codePoint >= 0x80 && step.codePoint < 0xa0)
    return {"?", 1};
  return {std::string(character), displayWidth(step.codePoint)};
}

Layout llama::layOut(std::string_view prompt, const EditedText &text, int columns) {
  Layout layout;
  layout.rows.emplace_back(prompt);
  int column = static_cast<int>(prompt.size());
  const auto startRow = [&] {
    layout.rows.emplace_back();
    column = 0;
  };
  const std::string_view content = text.text();
  for (std::size_t at = 0; at <= content.size();) {
    const std::size_t length = at < content.size() ? readUtf8(content.substr(at)).length : 0;
    const std::string_view character = content.substr(at, length);
    const bool breaks = character == "\n";
    const auto [display, width] =
        length && !breaks ? shown(character) : std::pair<std::string, int>("", breaks ? 0 : 1);
    // A cursor behind the last column would have no place: the end counts as a character of one column.
    if (column + width > columns && column > 0)
      startRow();
    if (at == text.cursor()) {
      layout.cursorRow = layout.rows.size() - 1;
      layout.cursorColumn = column;
    }
    layout.rows.back() += display;
    column += width;
    if (breaks)
      startRow();
    at += std::max<std::size_t>(length, 1);
  }
  return layout;
}
