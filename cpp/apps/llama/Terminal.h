//===- Terminal.h - What stands at the other end of a descriptor ----------===//

#ifndef BUDDY_APPS_LLAMA_TERMINAL_H
#define BUDDY_APPS_LLAMA_TERMINAL_H

#include <string>
#include <string_view>

#include <termios.h>

namespace buddy::llama {

/// True when descriptor `output` shows colours: a terminal, unless NO_COLOR is set (no-color.org) or TERM is "dumb".
bool showsColor(int output) noexcept;

/// `text` in a style for a descriptor that shows colours, as it is for others. Parameters as in ECMA-48's SGR: "1" is
/// bold, "2" faint, "32" green.
std::string styled(std::string_view text, const char *parameters, int output);

/// True when lines can be edited: input and output are a terminal that moves its cursor.
bool canEditLines(int input, int output) noexcept;

struct TerminalSize {
  int rows, columns;
};

/// The size of the terminal; 24 x 80 when it does not say.
TerminalSize terminalSize(int output) noexcept;

/// While it lives, bytes come as they are typed: no echo, no editing by the system, no signals from keys.
class RawMode {
public:
  explicit RawMode(int input) noexcept;
  RawMode(const RawMode &) = delete;
  RawMode &operator=(const RawMode &) = delete;
  ~RawMode();

private:
  int descriptor;
  bool changed;
  termios before;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_TERMINAL_H
