//===- Main.cpp - buddy-llama-run: load, generate, report -----------------===//

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>

#include <fcntl.h>
#include <unistd.h>

#include "CacheFile.h"
#include "Chat.h"
#include "Generation.h"
#include "Input.h"
#include "Interrupt.h"
#include "LogitsFile.h"
#include "Options.h"
#include "Output.h"
#include "Printer.h"
#include "Report.h"
#include "Session.h"
#include "buddy/Error.h"
#include "buddy/Profile.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::llama;

static double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What is done before the first prompt: after this the clock starts. Returns what the prompt cache held.
static std::vector<std::int32_t> prepare(Session &session, const std::vector<std::int32_t> &likePrompt,
                                         const Options &options, RunInfo &info) {
  if (options.warmUp) {
    const auto start = std::chrono::steady_clock::now();
    session.warmUp(likePrompt);
    info.warmUpSeconds = secondsSince(start);
  }
  if (!options.promptCache.empty())
    restoreCaches(session, options.promptCache);
  setProfiling(options.profile);
  return session.ids();
}

static void finish(Session &session, const std::vector<std::int32_t> &restored, const Options &options) {
  if (!options.promptCache.empty() && session.ids() != restored)
    saveCaches(session, options.promptCache);
}

static std::vector<std::int32_t> encodePrompt(const Session &session, const Options &options) {
  if (options.ids)
    return *options.ids;
  return session.text().encode(readPrompt(options), /*addSpecial=*/true, /*parseSpecial=*/true);
}

static void tellStatistics(const Answer &answer, const RunInfo &info) {
  std::fputs(statistics(answer, info).c_str(), stderr);
  if (info.profile)
    std::fputs(profileText().c_str(), stderr);
}

static void report(const Answer &answer, const Session &session, const Options &options, const RunInfo &info) {
  if (options.json)
    print(answerJson(answer, info, session) + "\n");
  else if (!options.quiet)
    tellStatistics(answer, info);
  else if (info.profile)
    std::fputs(profileText().c_str(), stderr);
}

static Answer answerPrompt(Session &session, Sampler &sampler, std::vector<std::int32_t> ids, const Options &options) {
  Printer printer(options);
  if (options.logitsFile.empty())
    return generate(session, sampler, std::move(ids), options.generation, printer);
  LogitsFile file(options.logitsFile, session.vocabSize());
  session.onLogits([&file](const float *row) { file.append(row); });
  Answer answer = generate(session, sampler, std::move(ids), options.generation, printer);
  file.finish();
  return answer;
}

static void complete(Session &session, Sampler &sampler, const Options &options, RunInfo &info) {
  if (!options.generation.stops.empty())
    session.text(); // stop strings need a vocabulary
  std::vector<std::int32_t> ids = encodePrompt(session, options);
  const std::vector<std::int32_t> restored = prepare(session, ids, options, info);
  report(answerPrompt(session, sampler, std::move(ids), options), session, options, info);
  finish(session, restored, options);
}

/// A chat tells its statistics at its end, when an answer was stopped, and when it is asked. Returns the exit code: of
/// lines that came from a file or a pipe, all must have been taken.
static int converse(Session &session, Sampler &sampler, const Options &options, RunInfo &info) {
  const std::vector<std::int32_t> restored = prepare(session, {0, 0}, options, info);
  Answer total;
  bool told = true, answered = false;
  ChatReceiver receiver;
  receiver.answered = [&](const Answer &answer) {
    total.addTimes(answer);
    answered = true;
    told = options.json || answer.stop == Stop::Interrupt;
    if (told)
      report(answer, session, options, info);
  };
  receiver.statisticsWanted = [&] {
    if (answered)
      tellStatistics(total, info);
    else
      std::fputs("(there is no answer yet)\n", stderr);
    told = true;
  };
  const std::size_t refused = chat(session, sampler, options, receiver);
  if (!told)
    report(total, session, options, info);
  finish(session, restored, options);
  return refused > 0 && !isatty(STDIN_FILENO) ? 1 : 0;
}

static int run(const Options &options) {
  const auto start = std::chrono::steady_clock::now();
  catchSignals();
  if (options.profile)
    requireProfiling();
  Session session(options.session);
  Sampler sampler(options.generation.sampler, session.vocabSize());

  RunInfo info;
  info.loadSeconds = secondsSince(start);
  info.threads = threadCount();
  if (options.generation.sampler.temperature > 0)
    info.seed = sampler.seed();
  info.logProbabilities = options.generation.logProbabilities.has_value();
  info.profile = options.profile;

  if (options.chat)
    return converse(session, sampler, options, info);
  complete(session, sampler, options, info);
  return 0;
}

/// A file that is opened must never take the number of a standard stream that was closed: what is said would go there.
/// Using the stream stays an error, but for standard error.
static void holdStandardDescriptors() {
  const int flags[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF && open("/dev/null", flags[descriptor]) < 0)
      _exit(1);
}

static int fail(int code, const std::string &sentence) {
  std::fprintf(stderr, "error: %s\n", sentence.c_str());
  return code;
}

int main(int argc, char **argv) {
  holdStandardDescriptors();
  try {
    const Options options = parseOptions(argc, argv);
    if (options.help)
      print(helpText());
    else if (options.version)
      print(versionText());
    else
      return run(options);
    return 0;
  } catch (const QuietExit &) {
    return 0;
  } catch (const UsageError &error) {
    return fail(2, std::string(error.what()) + " (--help lists the options)");
  } catch (const std::bad_alloc &) {
    return fail(1, "out of memory: give a smaller context with -c, or a shorter prompt");
  } catch (const std::exception &error) {
    return fail(1, error.what());
  }
}
