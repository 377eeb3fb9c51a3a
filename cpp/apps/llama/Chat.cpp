//===- Chat.cpp - A conversation that keeps its history -------------------===//

#include "Chat.h"

#include <ctime>
#include <utility>

#include <unistd.h>

#include "Input.h"
#include "Interrupt.h"
#include "Output.h"
#include "Printer.h"
#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

namespace {

class Conversation {
public:
  Conversation(Session &loaded, Sampler &chosen, const Options &given)
      : session(loaded), sampler(chosen), options(given), form(requireTemplate(loaded)) {
    // One date for the whole conversation: its beginning must not change under the caches.
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &today);
    if (options.system)
      messages.push_back({ChatRole::System, *options.system});
  }

  Answer ask(std::string question) {
    messages.push_back({ChatRole::User, std::move(question)});
    std::vector<std::int32_t> ids = session.text().encode(form.render(messages, true, &today), /*addSpecial=*/false);
    if (static_cast<std::int64_t>(ids.size()) > session.contextSize())
      throw Error("the conversation has " + std::to_string(ids.size()) + " tokens and the context holds " +
                  std::to_string(session.contextSize()) + ": start a new one, or give a larger context with -c");
    Printer printer(options);
    Answer answer = generate(session, sampler, std::move(ids), options.generation, printer);
    messages.push_back({ChatRole::Assistant, answer.text});
    return answer;
  }

private:
  static const ChatTemplate &requireTemplate(const Session &session) {
    const ChatTemplate *form = session.text().chat();
    if (!form)
      throw Error("this model can not chat (" + session.text().chatUnavailableReason() +
                  "): use -p for plain completion");
    return *form;
  }

  Session &session;
  Sampler &sampler;
  const Options &options;
  const ChatTemplate &form;
  std::tm today = {};
  std::vector<ChatMessage> messages;
};

/// The user's turns: the prompt of -p or -f, if there is one, and then the lines of standard input that are not empty.
class Questions {
public:
  explicit Questions(const Options &options) : interactive(isatty(STDIN_FILENO) && !options.json) {
    if (options.prompt || options.promptFile)
      first = readPrompt(options);
  }

  std::optional<std::string> next() {
    if (first)
      return std::exchange(first, std::nullopt);
    while (true) {
      if (interactive)
        print("> ");
      std::optional<std::string> line = lines.next();
      if (!line && interactive)
        print("\n");
      if (!line || !line->empty())
        return line;
    }
  }

private:
  std::optional<std::string> first;
  LineReader lines;
  bool interactive;
};

} // namespace

void llama::chat(Session &session, Sampler &sampler, const Options &options,
                 const std::function<void(const Answer &)> &report) {
  Conversation conversation(session, sampler, options);
  Questions questions(options);
  while (std::optional<std::string> question = questions.next()) {
    requireUtf8(*question, "what was said");
    clearInterrupt();
    report(conversation.ask(std::move(*question)));
    clearInterrupt();
  }
}
