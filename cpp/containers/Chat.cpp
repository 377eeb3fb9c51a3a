//===- Chat.cpp - A model's chat template, compiled ahead of time ---------===//

#include "buddy/Chat.h"
#include "ChatDate.h"
#include "UnicodeClasses.h"
#include "buddy/Error.h"

#include <utility>

using namespace buddy;

namespace {

/// What Python's str.strip takes: \s and the four separators of ASCII.
bool isPythonSpace(const ClassifiedChar &c) {
  return c.is(UnicodeSpace) || (c.codePoint >= 0x1c && c.codePoint <= 0x1f);
}

std::string_view trimLeft(std::string_view text) {
  while (!text.empty()) {
    const ClassifiedChar first = classifyNext(text, 0);
    if (!isPythonSpace(first))
      break;
    text.remove_prefix(first.length);
  }
  return text;
}

std::string_view trimRight(std::string_view text) {
  while (!text.empty()) {
    const ClassifiedChar last = classifyPrevious(text, text.size());
    if (!isPythonSpace(last))
      break;
    text.remove_suffix(last.length);
  }
  return text;
}

std::tm localToday() {
  const std::time_t now = std::time(nullptr);
  std::tm today{};
  ::localtime_r(&now, &today);
  return today;
}

/// Adds to the last segment when it is of the same kind.
void appendText(std::vector<OwnedSegment> &out, std::string_view text, bool parseSpecial) {
  if (text.empty())
    return;
  if (out.empty() || out.back().parseSpecial != parseSpecial)
    out.push_back({std::string(), parseSpecial});
  out.back().text += text;
}

constexpr const char *contentNames[] = {"system message", "message", "message", "answer"};

} // namespace

ChatTemplate::ChatTemplate(Data reduced) : data(std::move(reduced)) {}

void ChatTemplate::append(std::vector<OwnedSegment> &out, Piece piece, const std::tm &today) const {
  for (const ChatPiece::Part &part : data.pieces[piece].parts)
    appendText(out, part.isDate ? formatChatDate(part.text, today) : part.text, true);
}

void ChatTemplate::append(std::vector<OwnedSegment> &out, Content slot, std::string_view content) const {
  const ContentRule &rule = data.rules[slot];
  if (rule.refuseBlank && trimLeft(content).empty())
    throw Error(std::string("This model's chat template does not show an empty ") + contentNames[slot] +
                " as it shows others: write something, or leave it out.");
  if (rule.trimLeft)
    content = trimLeft(content);
  if (rule.trimRight)
    content = trimRight(content);
  appendText(out, content, false);
}

std::vector<OwnedSegment> ChatTemplate::firstTurn(const std::string *system, std::string_view user,
                                                  const std::tm *today) const {
  std::vector<ChatMessage> messages;
  if (system)
    messages.push_back({ChatRole::System, *system});
  messages.push_back({ChatRole::User, std::string(user)});
  return render(messages, true, today);
}

std::vector<OwnedSegment> ChatTemplate::nextTurn(std::string_view user, std::string_view written,
                                                 const std::tm *today) const {
  const std::tm date = today ? *today : localToday();
  std::vector<OwnedSegment> out;
  append(out, AssistantToUser, date);
  if (!out.empty() && !written.empty() && std::string_view(out.front().text).substr(0, written.size()) == written) {
    out.front().text.erase(0, written.size());
    if (out.front().text.empty())
      out.clear();
  }
  append(out, User, user);
  append(out, Generation, date);
  return out;
}

bool ChatTemplate::keepsAnswer(std::string_view answer) const {
  const std::tm anyDay{};
  std::vector<OwnedSegment> generated, shown;
  append(generated, Generation, anyDay);
  append(shown, UserToAssistant, anyDay);
  const bool samePiece =
      generated.size() == shown.size() && (generated.empty() || generated.front().text == shown.front().text);
  const ContentRule &rule = data.rules[Assistant];
  return samePiece && !(rule.refuseBlank && trimLeft(answer).empty()) &&
         !(rule.trimLeft && trimLeft(answer).size() != answer.size()) &&
         !(rule.trimRight && trimRight(answer).size() != answer.size());
}

std::vector<OwnedSegment> ChatTemplate::render(const std::vector<ChatMessage> &messages, bool addGenerationPrompt,
                                               const std::tm *today) const {
  const std::tm date = today ? *today : localToday();
  std::vector<OwnedSegment> out;
  const bool hasSystem = !messages.empty() && messages.front().role == ChatRole::System;
  if (hasSystem && !data.supportsSystem)
    throw Error("This model's chat template takes no system message: " + data.systemUnsupportedReason);
  const std::size_t first = hasSystem ? 1 : 0;
  if (messages.size() <= first)
    throw Error("A chat needs a user's message.");

  append(out, hasSystem ? SystemStart : Start, date);
  if (hasSystem) {
    append(out, System, messages.front().content);
    append(out, SystemToUser, date);
  }
  for (std::size_t i = first; i < messages.size(); ++i) {
    const bool isUser = (i - first) % 2 == 0;
    if (messages[i].role != (isUser ? ChatRole::User : ChatRole::Assistant))
      throw Error("The messages of a chat must alternate between user and assistant, and begin with the user.");
    if (i > first)
      append(out, isUser ? AssistantToUser : UserToAssistant, date);
    append(out, isUser ? (hasSystem && i == first ? UserAfterSystem : User) : Assistant, messages[i].content);
  }
  const bool endsWithUser = messages.back().role == ChatRole::User;
  if (addGenerationPrompt && !endsWithUser)
    throw Error("An answer can be generated only after a user's message.");
  append(out, addGenerationPrompt ? Generation : endsWithUser ? EndAfterUser : EndAfterAssistant, date);
  return out;
}
