//===- LineEditor.h - Lines typed at a terminal ---------------------------===//
//
// The keys are those of shells: arrows, Home, End, Delete, Ctrl-A B D E F H K L U W, Alt-B D F and Alt-Backspace; up
// and down (Ctrl-P, Ctrl-N) go through the lines before. Alt-Enter begins a new line, and so does a newline that is
// pasted; Enter sends. Ctrl-C drops the line; Ctrl-D, and Ctrl-C too, end the input when the line is empty. Ctrl-Z
// suspends the program.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_LINEEDITOR_H
#define BUDDY_APPS_LLAMA_LINEEDITOR_H

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "EditedText.h"
#include "Terminal.h"

namespace buddy::llama {

class LineEditor {
public:
  /// `promptStyle` as styled() takes it.
  LineEditor(int inputDescriptor, int outputDescriptor, std::string promptText, const char *promptStyle);

  /// The next line, without its end; always valid UTF-8. nullopt at the end of the input and after Ctrl-C on an empty
  /// line. Throws QuietExit when the terminal is gone.
  std::optional<std::string> next();

private:
  enum class Outcome { Editing, Accepted, Dropped, Ended };

  Outcome handle(unsigned char byte);
  Outcome handleControl(unsigned char byte);
  void handleSequence(const std::string &sequence);
  void insertCharacter(unsigned char first);
  void paste();
  void recall(std::size_t index);
  void suspend();

  std::optional<unsigned char> readByte(int timeout);
  std::string readSequence();

  void refresh();
  void leaveLine();
  void write(std::string_view bytes) const;

  int input, output;
  std::string prompt, style;
  std::optional<RawMode> raw;
  EditedText edited;
  std::string unread;               // bytes that came and are not used yet
  std::vector<std::string> history; // the line that is edited stands at its end
  std::size_t historyAt = 0;
  std::size_t cursorRow = 0, rowCount = 1; // of what is shown
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_LINEEDITOR_H
