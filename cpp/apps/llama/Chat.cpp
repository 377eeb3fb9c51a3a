//===- Chat.cpp - A conversation at a terminal or through a pipe ----------===//

#include "Chat.h"

#include <cstdio>
#include <optional>
#include <utility>

#include <unistd.h>

#include "Conversation.h"
#include "Input.h"
#include "Interrupt.h"
#include "LineEditor.h"
#include "Output.h"
#include "Printer.h"
#include "Terminal.h"
#include "buddy/Error.h"
#include "buddy/Unicode.h"

using namespace buddy;
using namespace buddy::llama;

static constexpr const char *promptText = "> ", *promptStyle = "1;32", *noteStyle = "2";

static void tell(const std::string &sentence) {
  std::fputs(styled(sentence + "\n", noteStyle, STDERR_FILENO).c_str(), stderr);
}

namespace {

/// The user's turns: the prompt of -p or -f, if there is one, and then the lines of standard input that are not empty.
class Questions {
public:
  struct Question {
    std::string text;
    bool typed; // a line of standard input, which may be a command
  };

  explicit Questions(const Options &options) : prompts(isatty(STDIN_FILENO) && !options.json) {
    if (options.prompt || options.promptFile)
      first = readPrompt(options);
    if (prompts && !options.quiet)
      tell("(/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat)");
    if (prompts && canEditLines(STDIN_FILENO, STDOUT_FILENO))
      editor.emplace(STDIN_FILENO, STDOUT_FILENO, promptText, promptStyle);
  }

  std::optional<Question> next() {
    if (first)
      return Question{*std::exchange(first, std::nullopt), false};
    while (true) {
      const std::optional<std::string> line = nextLine();
      if (!line)
        return std::nullopt;
      if (!line->empty())
        return Question{*line, true};
    }
  }

private:
  std::optional<std::string> nextLine() {
    if (editor)
      return editor->next();
    if (prompts)
      print(promptText);
    std::optional<std::string> line = lines.next();
    if (!line && prompts)
      print("\n");
    return line;
  }

  std::optional<std::string> first;
  std::optional<LineEditor> editor;
  LineReader lines;
  bool prompts;
};

class Chat {
public:
  Chat(Session &loaded, Sampler &chosen, const Options &given, const ChatReceiver &told)
      : session(loaded), sampler(chosen), options(given), receiver(told), conversation(loaded) {
    conversation.setSystem(options.system);
  }

  /// Goes through all questions; returns how many lines were refused.
  std::size_t run() {
    Questions questions(options);
    while (const auto question = questions.next()) {
      clearInterrupt();
      try {
        if (!take(question->text, question->typed))
          break;
      } catch (const Refused &refusal) {
        std::fprintf(stderr, "error: %s\n", refusal.sentence.c_str());
        ++refused;
      }
      clearInterrupt();
    }
    return refused;
  }

private:
  /// A line that can not be taken; the chat goes on.
  struct Refused {
    std::string sentence;
  };

  /// False when the chat is to end.
  bool take(const std::string &line, bool typed) {
    std::size_t wrong = 0;
    if (!isValidUtf8(line, &wrong))
      throw Refused{"what was said is not valid UTF-8 (at byte " + std::to_string(wrong + 1) +
                    " of the line) and was left out"};
    if (!typed || line[0] != '/') {
      ask(line);
      return true;
    }
    if (line.compare(0, 2, "//") == 0) {
      ask(line.substr(1));
      return true;
    }
    return command(line);
  }

  void ask(const std::string &question) {
    std::vector<std::int32_t> ids;
    try {
      ids = conversation.ask(question, options.generation.maxTokens);
    } catch (const Error &error) {
      throw Refused{error.what()};
    }
    if (conversation.leftOut() > 0)
      tell("(the context is full: the oldest " +
           (conversation.leftOut() == 1 ? "turn was" : std::to_string(conversation.leftOut()) + " turns were") +
           " forgotten)");
    Printer printer(options);
    const Answer answer = generate(session, sampler, std::move(ids), options.generation, printer);
    if (answer.stop == Stop::Interrupt && answer.text.empty())
      conversation.takeBack(); // as if it had not been asked
    else
      conversation.answer(answer.text);
    if (answer.stop == Stop::Context)
      tell("(the context is full: the answer ends here; the next question makes room)");
    receiver.answered(answer);
  }

  bool command(const std::string &line) {
    const std::size_t space = line.find_first_of(" \t\n");
    const std::string name = line.substr(0, space);
    const std::size_t begin = line.find_first_not_of(" \t\n", space);
    const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
    if (name != "/system" && !rest.empty())
      throw Refused{name + " takes nothing behind it; to say a line that begins with a slash, type two"};
    if (name == "/quit")
      return false;
    if (name == "/clear")
      clear();
    else if (name == "/stats")
      showStatistics();
    else if (name == "/system")
      setSystem(rest);
    else if (name == "/help")
      help();
    else
      throw Refused{"the command '" + name + "' is unknown; /help lists them, and to say a line that begins with a " +
                    "slash, type two"};
    return true;
  }

  void clear() {
    conversation.clear();
    tell("(the conversation begins anew)");
  }

  void showStatistics() {
    receiver.statisticsWanted();
    const std::size_t turns = conversation.turnCount();
    tell("context: " + std::to_string(session.size()) + " of " + std::to_string(session.contextSize()) + " tokens, " +
         std::to_string(turns) + (turns == 1 ? " turn" : " turns"));
  }

  void setSystem(const std::string &text) {
    try {
      conversation.setSystem(text.empty() ? std::nullopt : std::optional(text));
    } catch (const Error &error) {
      throw Refused{error.what()};
    }
    tell(text.empty() ? "(there is no system message now)" : "(the system message is set)");
  }

  static void help() {
    tell("/clear        forget what was said\n"
         "/stats        tell times, and how full the context is\n"
         "/system TEXT  set the system message; without TEXT, take it away\n"
         "/quit         end the chat, as Ctrl-D does\n"
         "/help         this list\n"
         "Two slashes begin a line that is no command. Alt-Enter begins a new line. Ctrl-C stops an answer.");
  }

  Session &session;
  Sampler &sampler;
  const Options &options;
  const ChatReceiver &receiver;
  Conversation conversation;
  std::size_t refused = 0;
};

} // namespace

std::size_t llama::chat(Session &session, Sampler &sampler, const Options &options, const ChatReceiver &receiver) {
  return Chat(session, sampler, options, receiver).run();
}
