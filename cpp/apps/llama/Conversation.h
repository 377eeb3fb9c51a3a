//===- Conversation.h - What was said so far ------------------------------===//

#ifndef BUDDY_APPS_LLAMA_CONVERSATION_H
#define BUDDY_APPS_LLAMA_CONVERSATION_H

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "Generation.h"

namespace buddy::llama {

/// The turns of a chat and their prompt: the model's own template of all of them. When they fill the context, the
/// oldest turns are left out, a question with its answer at a time.
class Conversation {
public:
  /// Throws Error when the model has no template.
  explicit Conversation(const Session &loaded);

  /// Sets the system message, or takes it away. Throws Error when the template has no place for one, and for
  /// one that fills the context by itself.
  void setSystem(const std::optional<std::string> &text);

  /// Forgets all turns; the system message stays.
  void clear() { turns.clear(); }

  /// Adds a question; returns the prompt for its answer. It leaves room for an answer of `answerTokens` (-1: any), as
  /// far as that is at most a quarter of the context. Throws Error, and forgets the question, when it is too long by
  /// itself or the template refuses it.
  std::vector<std::int32_t> ask(std::string question, std::int64_t answerTokens);

  /// How many turns the last ask left out.
  std::size_t leftOut() const noexcept { return dropped; }

  /// Adds the answer to the last question. One that the template has no form for takes the question back.
  void answer(const std::string &text);

  /// Takes back the last question, which has no answer.
  void takeBack() { turns.pop_back(); }

  /// Questions in the history.
  std::size_t turnCount() const noexcept { return turns.size(); }

private:
  struct Turn {
    std::string question;
    std::optional<std::string> answer; // none yet for the last one
  };

  std::vector<ChatMessage> messages() const;
  std::vector<std::int32_t> render() const;

  const Session &session;
  const ChatTemplate &form;
  std::tm today = {}; // one date for the whole conversation: its beginning must not change under the caches
  std::optional<std::string> system;
  std::vector<Turn> turns;
  std::size_t dropped = 0;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_CONVERSATION_H
