//===- Generation.cpp - From a prompt to an answer ------------------------===//

#include "Generation.h"

#include <chrono>
#include <utility>

#include "StopFilter.h"
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

/// Turns the tokens of an answer into text for the receiver.
class Transcript {
public:
  Transcript(const Session &session, const GenerationOptions &options, Receiver &destination)
      : filter(options.stops), receiver(destination) {
    if (session.hasText())
      decoder.emplace(session.text().decoder(/*skipSpecial=*/true));
  }

  /// False when the receiver wants no more.
  bool push(std::int32_t id, const TokenLogProbabilities *logProbabilities) {
    const std::string piece = decoder ? filter.push(decoder->push(id)) : "";
    text += piece;
    return receiver.onToken({id, decoder.has_value(), piece, logProbabilities});
  }

  /// True when the text has come to a stop string.
  bool stopped() const { return filter.stopped(); }

  /// Passes on what is left; returns the whole text.
  std::string finish() {
    std::string rest;
    if (decoder && !stopped()) {
      rest = filter.push(decoder->finish());
      if (!stopped())
        rest += filter.finish();
    }
    text += rest;
    receiver.onEnd(rest);
    return std::move(text);
  }

private:
  StopFilter filter;
  Receiver &receiver;
  std::optional<Text::Decoder> decoder;
  std::string text;
};

} // namespace

const char *llama::stopName(Stop stop) noexcept {
  switch (stop) {
  case Stop::End:
    return "eos";
  case Stop::Length:
    return "length";
  case Stop::StopString:
    return "stop-string";
  case Stop::Context:
    return "context";
  case Stop::Interrupt:
    return "interrupt";
  }
  return "";
}

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

static void evaluatePrompt(Session &session, Receiver &receiver, Answer &answer) {
  const Stopwatch watch;
  const std::size_t kept = session.keepPrefix(answer.promptIds);
  const std::size_t rest = answer.promptIds.size() - kept;
  if (!session.feed(answer.promptIds.data() + kept, rest, [&receiver] { return receiver.cancelled(); }))
    answer.stop = Stop::Interrupt;
  answer.prefilled = static_cast<std::int64_t>(session.size() - kept); // an interrupt leaves some out
  answer.prefillSeconds = watch.seconds();
}

/// Generates tokens until one of the reasons to stop comes.
static Stop generateTokens(Session &session, Sampler &sampler, Transcript &transcript, Receiver &receiver,
                           const GenerationOptions &options, Answer &answer) {
  std::optional<Stopwatch> watch;
  const auto vocabSize = static_cast<std::size_t>(session.vocabSize());
  const auto limit = static_cast<std::uint64_t>(options.maxTokens); // -1 becomes the largest number
  while (true) {
    if (answer.ids.size() == limit)
      return Stop::Length;
    if (session.isFull())
      return Stop::Context;
    if (receiver.cancelled())
      return Stop::Interrupt;
    const std::int32_t id = sampler.sample(session.logits());
    if (session.isEnd(id) && !options.ignoreEnd)
      return Stop::End;
    answer.ids.push_back(id);
    if (options.logProbabilities)
      answer.logProbabilities.push_back(logProbabilities(session.logits(), vocabSize, id, *options.logProbabilities));
    const bool goesOn = transcript.push(id, options.logProbabilities ? &answer.logProbabilities.back() : nullptr);
    if (watch)
      answer.decodeSeconds = watch->seconds();
    if (transcript.stopped())
      return Stop::StopString;
    if (!goesOn)
      return Stop::Interrupt;
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
                       const GenerationOptions &options, Receiver &receiver) {
  Answer answer;
  answer.promptIds = std::move(promptIds);
  checkPrompt(answer.promptIds, session);
  Transcript transcript(session, options, receiver);
  sampler.begin(answer.promptIds);
  evaluatePrompt(session, receiver, answer);
  if (answer.stop != Stop::Interrupt)
    answer.stop = generateTokens(session, sampler, transcript, receiver, options, answer);
  answer.text = transcript.finish();
  return answer;
}
