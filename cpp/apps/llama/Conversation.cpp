//===- Conversation.cpp - What was said so far ----------------------------===//

#include "Conversation.h"

#include <algorithm>
#include <utility>

#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

static const ChatTemplate &requireTemplate(const Session &session) {
  const ChatTemplate *form = session.text().chat();
  if (!form)
    throw Error("this model can not chat (" + session.text().chatUnavailableReason() +
                "): use -p for plain completion");
  return *form;
}

Conversation::Conversation(const Session &loaded) : session(loaded), form(requireTemplate(loaded)) {
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &today);
}

void Conversation::setSystem(const std::optional<std::string> &text) {
  if (text && !form.supportsSystem())
    throw Error("this model takes no system message (" + form.systemUnsupportedReason() +
                "): say it in the first question");
  if (text) {
    const std::size_t tokens = session.text().encode(*text, /*addSpecial=*/false, /*parseSpecial=*/false).size();
    if (static_cast<std::int64_t>(tokens) >= session.contextSize())
      throw Error("the system message has " + std::to_string(tokens) + " tokens and the context holds " +
                  std::to_string(session.contextSize()) + ": make it shorter, or give a larger context with -c");
  }
  system = text;
}

std::vector<ChatMessage> Conversation::messages() const {
  std::vector<ChatMessage> list;
  if (system)
    list.push_back({ChatRole::System, *system});
  for (const Turn &turn : turns) {
    list.push_back({ChatRole::User, turn.question});
    if (turn.answer)
      list.push_back({ChatRole::Assistant, *turn.answer});
  }
  return list;
}

std::vector<std::int32_t> Conversation::render() const {
  return session.text().encode(form.render(messages(), /*addGenerationPrompt=*/true, &today), /*addSpecial=*/false);
}

std::vector<std::int32_t> Conversation::ask(std::string question, std::int64_t answerTokens) {
  const std::int64_t context = session.contextSize(), most = std::max<std::int64_t>(context / 4, 1);
  const std::int64_t room = answerTokens < 0 ? most : std::clamp<std::int64_t>(answerTokens, 1, most);
  const std::vector<Turn> before = turns;
  dropped = 0;
  turns.push_back({std::move(question), std::nullopt});
  try {
    std::vector<std::int32_t> ids = render();
    const auto size = [&ids] { return static_cast<std::int64_t>(ids.size()); };
    // What is left out must be evaluated anew behind the gap; a quarter is freed at once, so that this is rare.
    const std::int64_t wanted = size() + room > context ? context - most : context;
    while (size() > wanted && turns.size() > 1) {
      turns.erase(turns.begin());
      ++dropped;
      ids = render();
    }
    if (size() >= context)
      throw Error(
          (system ? "the system message and this question make a prompt of " : "this question makes a prompt of ") +
          std::to_string(size()) + " tokens and the context holds " + std::to_string(context) +
          ": say it shorter, or give a larger context with -c");
    return ids;
  } catch (const Error &) {
    turns = before;
    throw;
  }
}

void Conversation::answer(const std::string &text) {
  turns.back().answer = text;
  try {
    form.render(messages(), /*addGenerationPrompt=*/false, &today);
  } catch (const Error &) {
    takeBack();
  }
}
