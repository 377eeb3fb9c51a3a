//===- Input.cpp - Where prompts come from --------------------------------===//

#include "Input.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "Interrupt.h"
#include "Output.h"
#include "buddy/Error.h"
#include "buddy/Text.h"

using namespace buddy;
using namespace buddy::llama;

/// Appends what can be read at once. False at the end of the file. Throws QuietExit when Ctrl-C ends the wait.
static bool readSome(int descriptor, const std::string &name, std::string &text) {
  char part[65536];
  while (true) {
    const ssize_t size = read(descriptor, part, sizeof part);
    if (size > 0)
      text.append(part, static_cast<std::size_t>(size));
    if (size >= 0)
      return size > 0;
    if (errno != EINTR)
      throw Error(name + " can not be read (" + std::strerror(errno) + ")");
    if (interrupted())
      throw QuietExit();
  }
}

static std::string readAll(int descriptor, const std::string &name) {
  std::string text;
  while (readSome(descriptor, name, text)) {
  }
  return text;
}

static std::string readFile(const std::string &path) {
  const std::string name = "the prompt file '" + path + "'";
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw Error(name + " can not be opened (" + std::strerror(errno) + ")");
  struct Closer {
    int number;
    ~Closer() { close(number); }
  } closer{descriptor};
  return readAll(descriptor, name);
}

void llama::requireUtf8(const std::string &text, const std::string &what) {
  if (!isValidUtf8(text))
    throw Error(what + " is not valid UTF-8: convert it first, for example with iconv");
}

std::string llama::readPrompt(const Options &options) {
  std::string text;
  if (options.prompt)
    text = *options.prompt;
  else if (options.promptFile)
    text = readFile(*options.promptFile);
  else if (isatty(STDIN_FILENO))
    throw UsageError("there is no prompt: give one with -p or -f, or start a chat with -cnv");
  else
    text = readAll(STDIN_FILENO, "standard input");
  if (text.empty())
    throw Error("the prompt is empty: give some text with -p, -f or standard input, or token ids with --ids");
  requireUtf8(text, "the prompt");
  return text;
}

std::optional<std::string> LineReader::next() {
  std::size_t end;
  while ((end = buffer.find('\n')) == std::string::npos && !ended)
    try {
      ended = !readSome(STDIN_FILENO, "standard input", buffer);
    } catch (const QuietExit &) {
      return std::nullopt;
    }
  if (end == std::string::npos && buffer.empty())
    return std::nullopt;
  std::string line = buffer.substr(0, end);
  buffer.erase(0, end == std::string::npos ? end : end + 1);
  if (!line.empty() && line.back() == '\r')
    line.pop_back();
  return line;
}
