//===- Generation.cpp - From a prompt to an answer ------------------------===//

#include "Generation.h"

#include <chrono>
#include <optional>
#include <utility>

#include "Interrupt.h"
#include "Output.h"
#include "buddy/Error.h"

using namespace buddy;
using namespace buddy::llama;

namespace {

class Stopwatch {
public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

private:
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

/// Shows the tokens of an answer: their text or, without a vocabulary, their ids.
class Display {
public:
  Display(const Session &session, const Options &options)
      : filter(options.stops, [this](std::string_view text) { show(text); }), visible(!options.json),
        streams(options.stream) {
    if (session.hasText())
      decoder.emplace(session.text().decoder(/*skipSpecial=*/true));
  }

  /// True when the text has come to a stop string.
  bool push(std::int32_t id) {
    if (decoder)
      return filter.push(decoder->push(id));
    show(std::to_string(id) + " ");
    return false;
  }

  /// Shows what is left; returns the text. `stopped`: it ended with a stop string.
  std::string finish(bool stopped) {
    if (decoder && !stopped && !filter.push(decoder->finish()))
      filter.finish();
    if (visible)
      print(unseen + "\n");
    return filter.text();
  }

private:
  void show(std::string_view text) {
    if (visible && streams)
      print(text);
    else if (visible)
      unseen += text;
  }

  StopFilter filter;
  std::optional<Text::Decoder> decoder;
  std::string unseen;
  bool visible, streams;
};

} // namespace

void Answer::addTimes(const Answer &other) {
  stop = other.stop;
  prefilled += other.prefilled;
  decoded += other.decoded;
  prefillSeconds += other.prefillSeconds;
  decodeSeconds += other.decodeSeconds;
}

static void checkPrompt(const std::vector<std::int32_t> &ids, const Session &session) {
  if (ids.empty())
    throw Error("the prompt is empty: give some text with -p, -f or standard input, or token ids with --ids");
  for (std::int32_t id : ids)
    if (id < 0 || id >= session.vocabSize())
      throw Error("the prompt holds the token " + std::to_string(id) + " and the model has " +
                  std::to_string(session.vocabSize()) + " tokens: its vocabulary does not fit, build it again");
  const std::int64_t size = static_cast<std::int64_t>(ids.size());
  if (size > session.contextSize())
    throw Error("the prompt has " + std::to_string(size) + " tokens and the context holds " +
                std::to_string(session.contextSize()) + ": shorten the prompt or give a larger context with -c");
}

static void evaluatePrompt(Session &session, Answer &answer) {
  const Stopwatch watch;
  const std::size_t kept = session.keepPrefix(answer.promptIds);
  const std::size_t rest = answer.promptIds.size() - kept;
  if (!session.feed(answer.promptIds.data() + kept, rest))
    answer.stop = Stop::Interrupt;
  answer.prefilled = static_cast<std::int64_t>(session.size() - kept); // an interrupt leaves some out
  answer.prefillSeconds = watch.seconds();
}

/// Generates tokens until one of the reasons to stop comes.
static Stop generateTokens(Session &session, Sampler &sampler, Display &display, const Options &options,
                           Answer &answer) {
  std::optional<Stopwatch> watch;
  const auto limit = static_cast<std::uint64_t>(options.maxTokens); // -1 becomes the largest number
  while (true) {
    if (answer.ids.size() == limit)
      return Stop::Length;
    if (session.isFull())
      return Stop::Context;
    if (interrupted())
      return Stop::Interrupt;
    const std::int32_t id = sampler.sample(session.logits());
    if (session.isEnd(id) && !options.ignoreEnd)
      return Stop::End;
    answer.ids.push_back(id);
    const bool stopped = display.push(id);
    if (watch)
      answer.decodeSeconds = watch->seconds();
    if (stopped)
      return Stop::StopString;
    if (answer.ids.size() == limit)
      return Stop::Length;
    if (!watch)
      watch.emplace(); // the first token came with the prompt
    session.feed(&id, 1);
    ++answer.decoded;
    answer.decodeSeconds = watch->seconds();
  }
}

Answer llama::generate(Session &session, Sampler &sampler, std::vector<std::int32_t> promptIds,
                       const Options &options) {
  Answer answer;
  answer.promptIds = std::move(promptIds);
  checkPrompt(answer.promptIds, session);
  Display display(session, options);
  sampler.begin(answer.promptIds);
  evaluatePrompt(session, answer);
  if (answer.stop != Stop::Interrupt)
    answer.stop = generateTokens(session, sampler, display, options, answer);
  answer.text = display.finish(answer.stop == Stop::StopString);
  return answer;
}
