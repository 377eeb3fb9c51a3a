//===- EditedText.h - A text with a cursor in it --------------------------===//

#ifndef BUDDY_APPS_LLAMA_EDITEDTEXT_H
#define BUDDY_APPS_LLAMA_EDITEDTEXT_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace buddy::llama {

/// Valid UTF-8. The cursor, an offset in bytes, stands between whole characters with all that combines with them.
class EditedText {
public:
  const std::string &text() const noexcept { return content; }
  std::size_t cursor() const noexcept { return position; }

  /// Takes another text; the cursor is at its end.
  void set(std::string text);
  void insert(std::string_view text);

  void moveLeft() { position = before(position); }
  void moveRight() { position = after(position); }
  void moveToLineStart() { position = lineStart(); }
  void moveToLineEnd() { position = lineEnd(); }
  void moveWordLeft() { position = wordBefore(); }
  void moveWordRight() { position = wordAfter(); }

  void eraseLeft() { erase(before(position), position); }
  void eraseRight() { erase(position, after(position)); }
  void eraseToLineStart() { erase(lineStart(), position); }
  void eraseToLineEnd() { erase(position, lineEnd()); }
  void eraseWordLeft() { erase(wordBefore(), position); }
  void eraseWordRight() { erase(position, wordAfter()); }

private:
  std::size_t before(std::size_t at) const;
  std::size_t after(std::size_t at) const;
  std::size_t wordBefore() const;
  std::size_t wordAfter() const;
  std::size_t lineStart() const;
  std::size_t lineEnd() const;
  void erase(std::size_t begin, std::size_t end);

  std::string content;
  std::size_t position = 0;
};

/// A text behind a prompt, cut into the rows of a terminal: no row is wider than that, and none holds a control
/// character. A prompt has one column for each byte.
struct Layout {
  std::vector<std::string> rows;
  std::size_t cursorRow = 0;
  int cursorColumn = 0;
};
Layout layOut(std::string_view prompt, const EditedText &text, int columns);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_EDITEDTEXT_H
