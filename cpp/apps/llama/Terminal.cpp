//===- Terminal.cpp - What stands at the other end of a descriptor --------===//

#include "Terminal.h"

#include <cstdlib>
#include <cstring>

#include <sys/ioctl.h>
#include <unistd.h>

using namespace buddy;
using namespace buddy::llama;

static bool isDumb() noexcept {
  const char *name = std::getenv("TERM");
  return name && std::strcmp(name, "dumb") == 0;
}

bool llama::showsColor(int output) noexcept {
  const char *noColor = std::getenv("NO_COLOR");
  return isatty(output) && !isDumb() && !(noColor && *noColor);
}

std::string llama::styled(std::string_view text, const char *parameters, int output) {
  if (!showsColor(output))
    return std::string(text);
  return "\x1b[" + std::string(parameters) + "m" + std::string(text) + "\x1b[0m";
}

bool llama::canEditLines(int input, int output) noexcept { return isatty(input) && isatty(output) && !isDumb(); }

TerminalSize llama::terminalSize(int output) noexcept {
  winsize size = {};
  const bool known = ioctl(output, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
  return known ? TerminalSize{size.ws_row, size.ws_col} : TerminalSize{24, 80};
}

RawMode::RawMode(int input) noexcept : descriptor(input), changed(tcgetattr(input, &before) == 0) {
  termios raw = before;
  raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INLCR | IGNCR | INPCK | ISTRIP | IXON);
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
  raw.c_cflag |= CS8;
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  // TCSADRAIN: what was typed ahead is kept.
  changed = changed && tcsetattr(input, TCSADRAIN, &raw) == 0;
}

RawMode::~RawMode() {
  if (changed)
    tcsetattr(descriptor, TCSADRAIN, &before);
}
