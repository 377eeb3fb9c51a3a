//===- LineEditor.cpp - Lines typed at a terminal -------------------------===//

#include "LineEditor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "Interrupt.h"
#include "Output.h"
#include "UnicodeClasses.h"
#include "buddy/Unicode.h"

using namespace buddy;
using namespace buddy::llama;

static constexpr int forever = -1;
// Between the bytes of one key; a person is slower.
static constexpr int keyMilliseconds = 50;
static constexpr unsigned char escape = 0x1b;
static constexpr unsigned char control(char letter) { return static_cast<unsigned char>(letter & 0x1f); }
static constexpr std::string_view pasteOn = "\x1b[?2004h", pasteOff = "\x1b[?2004l", pasteEnd = "\x1b[201~";

LineEditor::LineEditor(int inputDescriptor, int outputDescriptor, std::string promptText, const char *promptStyle)
    : input(inputDescriptor), output(outputDescriptor), prompt(std::move(promptText)), style(promptStyle) {}

std::optional<std::string> LineEditor::next() {
  struct Editing {
    explicit Editing(LineEditor &editor) : owner(editor) {
      owner.raw.emplace(owner.input);
      owner.write(pasteOn);
    }
    ~Editing() {
      owner.raw.reset();
      static_cast<void>(!::write(owner.output, pasteOff.data(), pasteOff.size()));
    }
    LineEditor &owner;
  } editing(*this);

  edited.set("");
  history.emplace_back();
  historyAt = history.size() - 1;
  cursorRow = 0;
  Outcome outcome = Outcome::Editing;
  while (outcome == Outcome::Editing) {
    if (unread.empty())
      refresh();
    const auto byte = readByte(forever);
    outcome = byte ? handle(*byte) : Outcome::Ended;
    if (outcome == Outcome::Dropped) {
      leaveLine();
      edited.set("");
      historyAt = history.size() - 1;
      outcome = Outcome::Editing;
    }
  }
  edited.set(edited.text()); // the cursor goes behind the text
  refresh();
  leaveLine();
  history.pop_back();
  if (outcome == Outcome::Ended)
    return std::nullopt;
  const bool repeats = !history.empty() && history.back() == edited.text();
  if (!edited.text().empty() && !repeats)
    history.push_back(edited.text());
  return edited.text();
}

//===----------------------------------------------------------------------===//
// Keys
//===----------------------------------------------------------------------===//

LineEditor::Outcome LineEditor::handle(unsigned char byte) {
  if (byte == escape) {
    handleSequence(readSequence());
    return Outcome::Editing;
  }
  if (byte < 0x20 || byte == 0x7f)
    return handleControl(byte);
  insertCharacter(byte);
  return Outcome::Editing;
}

LineEditor::Outcome LineEditor::handleControl(unsigned char byte) {
  switch (byte) {
  case '\r':
  case '\n':
    return Outcome::Accepted;
  case control('C'):
    return edited.text().empty() ? Outcome::Ended : Outcome::Dropped;
  case control('D'):
    if (edited.text().empty())
      return Outcome::Ended;
    edited.eraseRight();
    break;
  case control('A'):
    edited.moveToLineStart();
    break;
  case control('B'):
    edited.moveLeft();
    break;
  case control('E'):
    edited.moveToLineEnd();
    break;
  case control('F'):
    edited.moveRight();
    break;
  case control('H'):
  case 0x7f:
    edited.eraseLeft();
    break;
  case control('K'):
    edited.eraseToLineEnd();
    break;
  case control('L'):
    write("\x1b[H\x1b[2J");
    cursorRow = 0;
    break;
  case control('N'):
    recall(historyAt + 1);
    break;
  case control('P'):
    recall(historyAt - 1);
    break;
  case control('U'):
    edited.eraseToLineStart();
    break;
  case control('W'):
    edited.eraseWordLeft();
    break;
  case control('Z'):
    suspend();
    break;
  case '\t':
    edited.insert("\t");
    break;
  default:
    break;
  }
  return Outcome::Editing;
}

/// What follows an escape byte: of cursor and editing keys, or of a key that is held with Alt.
void LineEditor::handleSequence(const std::string &sequence) {
  using Action = void (EditedText::*)();
  static const std::map<std::string, Action> actions = {{"[C", &EditedText::moveRight},
                                                        {"OC", &EditedText::moveRight},
                                                        {"[D", &EditedText::moveLeft},
                                                        {"OD", &EditedText::moveLeft},
                                                        {"[H", &EditedText::moveToLineStart},
                                                        {"OH", &EditedText::moveToLineStart},
                                                        {"[1~", &EditedText::moveToLineStart},
                                                        {"[7~", &EditedText::moveToLineStart},
                                                        {"[F", &EditedText::moveToLineEnd},
                                                        {"OF", &EditedText::moveToLineEnd},
                                                        {"[4~", &EditedText::moveToLineEnd},
                                                        {"[8~", &EditedText::moveToLineEnd},
                                                        {"[3~", &EditedText::eraseRight},
                                                        {"[1;5C", &EditedText::moveWordRight},
                                                        {"[1;5D", &EditedText::moveWordLeft},
                                                        {"[1;3C", &EditedText::moveWordRight},
                                                        {"[1;3D", &EditedText::moveWordLeft},
                                                        {"f", &EditedText::moveWordRight},
                                                        {"b", &EditedText::moveWordLeft},
                                                        {"d", &EditedText::eraseWordRight},
                                                        {std::string(1, 0x7f), &EditedText::eraseWordLeft}};
  if (sequence == "[200~")
    paste();
  else if (sequence == "\r" || sequence == "\n")
    edited.insert("\n");
  else if (sequence == "[A" || sequence == "OA")
    recall(historyAt - 1);
  else if (sequence == "[B" || sequence == "OB")
    recall(historyAt + 1);
  else if (const auto found = actions.find(sequence); found != actions.end())
    (edited.*found->second)();
}

/// Bytes that are no character ring the bell and leave no trace.
void LineEditor::insertCharacter(unsigned char first) {
  std::string bytes(1, static_cast<char>(first));
  while (true) {
    const Utf8Step step = readUtf8(bytes);
    if (step.valid)
      return edited.insert(bytes);
    const auto byte = step.truncated ? readByte(keyMilliseconds) : std::nullopt;
    if (!byte)
      break;
    bytes += static_cast<char>(*byte);
  }
  // The last byte may be of the next key.
  if (bytes.size() > 1)
    unread.insert(0, 1, bytes.back());
  write("\a");
}

/// Takes all up to the end of what is pasted; newlines at its end are left out.
void LineEditor::paste() {
  std::string text;
  while (text.size() < pasteEnd.size() || text.compare(text.size() - pasteEnd.size(), pasteEnd.size(), pasteEnd) != 0) {
    const auto byte = readByte(forever);
    if (!byte)
      return;
    text += static_cast<char>(*byte);
  }
  text.resize(text.size() - pasteEnd.size());
  std::string lines;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\r')
      lines += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      lines += '\n';
  lines.erase(lines.find_last_not_of('\n') + 1);
  edited.insert(replaceInvalidUtf8(lines));
}

/// Shows another line of the history; what was typed so far stays in it.
void LineEditor::recall(std::size_t index) {
  if (index >= history.size())
    return;
  if (historyAt == history.size() - 1)
    history[historyAt] = edited.text();
  historyAt = index;
  edited.set(history[index]);
}

void LineEditor::suspend() {
  leaveLine();
  write(pasteOff);
  raw.reset();
  std::raise(SIGTSTP);
  raw.emplace(input);
  write(pasteOn);
}

//===----------------------------------------------------------------------===//
// Bytes
//===----------------------------------------------------------------------===//

/// The next byte; nullopt at the end of the input, when none comes in time, and after a signal that Interrupt.h notes.
std::optional<unsigned char> LineEditor::readByte(int timeout) {
  while (unread.empty()) {
    pollfd waiting = {input, POLLIN, 0};
    const int ready = poll(&waiting, 1, timeout);
    if (interrupted() || ready == 0)
      return std::nullopt;
    if (ready < 0)
      continue; // another signal
    char part[4096];
    const ssize_t size = ::read(input, part, sizeof part);
    if (size > 0)
      unread.assign(part, static_cast<std::size_t>(size));
    else if (size == 0)
      return std::nullopt;
    else if (errno != EINTR)
      throw QuietExit();
  }
  const char byte = unread.front();
  unread.erase(0, 1);
  return static_cast<unsigned char>(byte);
}

/// What follows an escape byte; empty when that stands alone.
std::string LineEditor::readSequence() {
  std::string sequence;
  while (const auto byte = readByte(keyMilliseconds)) {
    sequence += static_cast<char>(*byte);
    const bool isShort = sequence[0] != '[' && sequence[0] != 'O';
    const bool isFinal = sequence.size() > 1 && *byte >= 0x40 && *byte <= 0x7e;
    if (isShort || isFinal)
      break;
  }
  return sequence;
}

//===----------------------------------------------------------------------===//
// The screen
//===----------------------------------------------------------------------===//

/// Draws all rows anew, or as many around the cursor as the screen has.
void LineEditor::refresh() {
  const TerminalSize size = terminalSize(output);
  Layout layout = layOut(prompt, edited, size.columns);
  layout.rows[0] = styled(prompt, style.c_str(), output) + layout.rows[0].substr(prompt.size());
  const auto height = static_cast<std::size_t>(size.rows);
  const std::size_t first = layout.cursorRow < height ? 0 : layout.cursorRow - height + 1;
  const std::size_t last = std::min(layout.rows.size(), first + height) - 1;

  std::string out;
  if (cursorRow > 0)
    out += "\x1b[" + std::to_string(cursorRow) + "A";
  out += "\r\x1b[J";
  for (std::size_t row = first; row <= last; ++row)
    out += (row > first ? "\r\n" : "") + layout.rows[row];
  if (last > layout.cursorRow)
    out += "\x1b[" + std::to_string(last - layout.cursorRow) + "A";
  out += "\r";
  if (layout.cursorColumn > 0)
    out += "\x1b[" + std::to_string(layout.cursorColumn) + "C";
  write(out);
  cursorRow = layout.cursorRow - first;
  rowCount = last - first + 1;
}

/// Goes below all that is shown.
void LineEditor::leaveLine() {
  const std::size_t below = rowCount - 1 - cursorRow;
  write((below > 0 ? "\x1b[" + std::to_string(below) + "B" : "") + "\r\n");
  cursorRow = 0;
}

void LineEditor::write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::write(output, bytes.data(), bytes.size());
    if (written >= 0)
      bytes.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      throw QuietExit();
  }
}
