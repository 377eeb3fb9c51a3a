//===- Options.cpp - The command line -------------------------------------===//

#include "Options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "ModelConfig.h"
#include "buddy/Text.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::llama;

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

/// The whole of `text` as a number; nullopt for anything else.
template <typename T> static std::optional<T> parseInteger(std::string_view text) {
  T value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

static UsageError wrongValue(std::string_view flag, const std::string &value, const std::string &expected) {
  return UsageError(std::string(flag) + " takes " + expected + ", not '" + value + "'");
}

static std::int64_t integer(std::string_view flag, const std::string &value, std::int64_t low, std::int64_t high,
                            const std::string &expected) {
  const auto number = parseInteger<std::int64_t>(value);
  if (!number || *number < low || *number > high)
    throw wrongValue(flag, value, expected);
  return *number;
}

static double real(std::string_view flag, const std::string &value, double low, double high,
                   const std::string &expected) {
  // The program stays in the "C" locale, so the decimal point is a point everywhere.
  char *end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  const bool whole = !value.empty() && end == value.c_str() + value.size();
  if (!whole || !std::isfinite(number) || number < low || number > high)
    throw wrongValue(flag, value, expected);
  return number;
}

static std::vector<std::int32_t> tokenIds(std::string_view flag, const std::string &value) {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; !value.empty() && at <= value.size();) {
    const std::size_t comma = std::min(value.find(',', at), value.size());
    const std::string word = value.substr(at, comma - at);
    ids.push_back(static_cast<std::int32_t>(
        integer(flag, word, 0, model::vocabSize - 1,
                "token ids from 0 to " + std::to_string(model::vocabSize - 1) + ", with commas between them")));
    at = comma + 1;
  }
  return ids;
}

static std::string utf8(std::string_view flag, const std::string &value) {
  if (!isValidUtf8(value))
    throw UsageError("the text given to " + std::string(flag) + " is not valid UTF-8");
  return value;
}

//===----------------------------------------------------------------------===//
// The table of flags
//===----------------------------------------------------------------------===//

namespace {

struct Flag {
  std::string_view name, otherName;
  std::string_view argument; // empty: the flag takes none
  std::string help;
  void (*apply)(Options &options, std::string_view flag, const std::string &value);
};

constexpr double large = std::numeric_limits<float>::max();
constexpr std::int64_t many = std::numeric_limits<std::int64_t>::max();

} // namespace

using View = std::string_view;
using Value = const std::string &;

namespace {
struct Section {
  std::string_view title;
  std::vector<Flag> flags;
};
} // namespace

static const std::vector<Section> &sections() {
  static const std::vector<Section> table = {
      {"Model",
       {
           {"-m", "--model", "DIR", "folder with the model's files (default: the program's own)",
            [](Options &o, View, Value v) { o.session.modelDir = v; }},
           {"-c", "--ctx-size", "N",
            "positions in the context (default: " + std::to_string(Session::defaultContext()) +
                "; 0: the model's own, which is the most: " + std::to_string(model::contextLength) + ")",
            [](Options &o, View f, Value v) {
              const std::int64_t most = model::contextLength;
              o.session.context =
                  integer(f, v, 0, most, "0 (the model's own context) to " + std::to_string(most) + " positions");
              if (o.session.context == 0)
                o.session.context = most;
            }},
           {"-t", "--threads", "N", "threads (default, and 0: the CPUs that this process may use)",
            [](Options &o, View f, Value v) {
              const std::string range = "a number of threads from 0 to " + std::to_string(maxThreadCount);
              o.session.threads = static_cast<int>(integer(f, v, 0, maxThreadCount, range));
            }},
           {"-ub", "--ubatch-size", "N", "tokens of the prompt that are evaluated at once (default: 512)",
            [](Options &o, View f, Value v) { o.session.ubatch = integer(f, v, 1, 1 << 20, "1 to 1048576 tokens"); }},
           {"--verify", "", "", "check the weights' content before use",
            [](Options &o, View, Value) { o.session.verify = true; }},
           {"--warm-up", "", "", "evaluate once before the clock starts, so that no time goes into first touches",
            [](Options &o, View, Value) { o.warmUp = true; }},
       }},
      {"Prompt",
       {
           {"-p", "--prompt", "TEXT", "the prompt, taken as it is; with -cnv the first thing to say",
            [](Options &o, View, Value v) { o.prompt = v; }},
           {"-f", "--file", "FILE", "a file that holds the prompt (default: standard input)",
            [](Options &o, View, Value v) { o.promptFile = v; }},
           {"--ids", "", "N,N,...", "the prompt as token ids",
            [](Options &o, View f, Value v) { o.ids = tokenIds(f, v); }},
           {"-cnv", "--cnv", "", "chat: each line of standard input is a turn, the history is kept",
            [](Options &o, View, Value) { o.chat = true; }},
           {"-sys", "--sys", "TEXT", "the chat's system message",
            [](Options &o, View f, Value v) { o.system = utf8(f, v); }},
           {"--prompt-cache", "", "FILE",
            "keep the evaluated tokens in FILE: a prompt that begins alike starts behind them",
            [](Options &o, View, Value v) {
              if (v.empty())
                throw UsageError("--prompt-cache takes the name of a file, not an empty one");
              o.promptCache = v;
            }},
       }},
      {"Answer",
       {
           {"-n", "--predict", "N", "most tokens to generate (default: 128; -1: until the model stops)",
            [](Options &o, View f, Value v) {
              o.generation.maxTokens =
                  integer(f, v, -1, many, "a count up to " + std::to_string(many) + ", or -1 for no limit");
            }},
           {"--stop", "", "TEXT", "end where TEXT begins; may be given several times",
            [](Options &o, View f, Value v) {
              if (v.empty())
                throw UsageError("--stop takes a text, not an empty one");
              o.generation.stops.push_back(utf8(f, v));
            }},
           {"--ignore-eos", "", "", "go on past the token that ends an answer",
            [](Options &o, View, Value) { o.generation.ignoreEnd = true; }},
       }},
      {"Sampling",
       {
           {"--temp", "", "X", "temperature (default: 0, the likeliest token each time)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.temperature = real(f, v, 0, large, "a number from 0 to 3.4028234e38");
            }},
           {"--top-k", "", "N", "sample from the N likeliest tokens (default: 0, all)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.topK =
                  integer(f, v, 0, many, "a count up to " + std::to_string(many) + ", or 0 for all");
            }},
           {"--top-p", "", "X", "sample from the likeliest tokens with this share of the probability (default: 1)",
            [](Options &o, View f, Value v) { o.generation.sampler.topP = real(f, v, 0, 1, "a number from 0 to 1"); }},
           {"--min-p", "", "X", "leave out tokens less likely than X times the likeliest (default: 0)",
            [](Options &o, View f, Value v) { o.generation.sampler.minP = real(f, v, 0, 1, "a number from 0 to 1"); }},
           {"--typical", "", "X", "sample from the most typical tokens with this share (default: 1, all)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.typicalP = real(f, v, 0, 1, "a number from 0 to 1");
            }},
           {"--repeat-penalty", "", "X", "makes tokens of prompt and answer less likely (default: 1, off)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.repeatPenalty =
                  real(f, v, 1e-6, 1e6, "a number from 0.000001 to 1000000 (1 is off)");
            }},
           {"--presence-penalty", "", "X", "taken off the logits of tokens of the answer (default: 0, off)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.presencePenalty = real(f, v, -1e6, 1e6, "a number from -1000000 to 1000000");
            }},
           {"--frequency-penalty", "", "X", "the same, for each time that the token occurred (default: 0, off)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.frequencyPenalty = real(f, v, -1e6, 1e6, "a number from -1000000 to 1000000");
            }},
           {"--seed", "", "N", "of the random numbers (default: another one each time)",
            [](Options &o, View f, Value v) {
              o.generation.sampler.seed = parseInteger<std::uint64_t>(v);
              if (!o.generation.sampler.seed)
                throw wrongValue(f, v, "a whole number from 0 to 18446744073709551615");
            }},
       }},
      {"Output",
       {
           {"--no-stream", "", "", "print the text at the end, not as it is generated",
            [](Options &o, View, Value) { o.stream = false; }},
           {"--json", "", "", "print one JSON object (with -cnv one a turn) instead of the text",
            [](Options &o, View, Value) { o.json = true; }},
           {"--logprobs", "", "N", "with --json: log-probabilities of each token and of the N likeliest in its place",
            [](Options &o, View f, Value v) {
              o.generation.logProbabilities = static_cast<std::size_t>(
                  integer(f, v, 0, model::vocabSize, "a count from 0 to " + std::to_string(model::vocabSize)));
            }},
           {"--dump-logits", "", "FILE", "write logits as .npy: a row for each evaluated part of the prompt and token",
            [](Options &o, View, Value v) {
              if (v.empty())
                throw UsageError("--dump-logits takes the name of a file, not an empty one");
              o.logitsFile = v;
            }},
           {"--profile", "", "", "tell the time of each kernel", [](Options &o, View, Value) { o.profile = true; }},
           {"-q", "--quiet", "", "no statistics", [](Options &o, View, Value) { o.quiet = true; }},
           {"--version", "", "", "say what this program is", [](Options &o, View, Value) { o.version = true; }},
           {"-h", "--help", "", "this text", [](Options &o, View, Value) { o.help = true; }},
       }},
  };
  return table;
}

static const Flag *findFlag(std::string_view name) {
  for (const Section &section : sections())
    for (const Flag &flag : section.flags)
      if (!name.empty() && (flag.name == name || flag.otherName == name))
        return &flag;
  return nullptr;
}

static constexpr std::string_view examples = R"(
Examples:
  buddy-llama-run -p "The capital of France is" -n 32
  buddy-llama-run -cnv -sys "Answer in one sentence." --temp 0.7 --top-p 0.9
  buddy-llama-run -f report.txt --stop "###" --prompt-cache report.kv
  echo "2 + 2 =" | buddy-llama-run --json --logprobs 3

In a chat, /help lists the commands. NO_COLOR=1 switches colours off.

Exit code: 0 for success, also for an answer that Ctrl-C stopped and when the reader of the output has gone; 1 for a
failure; 2 for wrong usage; 130 when Ctrl-C comes a second time while an answer is being stopped.
)";

std::string llama::helpText() {
  std::string text =
      "Usage: buddy-llama-run [options]\n\nGenerates text with " + std::string(model::description) + ".\n";
  for (const Section &section : sections()) {
    text += "\n" + std::string(section.title) + ":\n";
    for (const Flag &flag : section.flags) {
      std::string left = "  " + std::string(flag.name);
      if (!flag.otherName.empty())
        left += ", " + std::string(flag.otherName);
      if (!flag.argument.empty())
        left += " " + std::string(flag.argument);
      left.resize(std::max<std::size_t>(left.size() + 2, 27), ' ');
      text += left + flag.help + "\n";
    }
  }
  return text + std::string(examples);
}

static void checkCombinations(const Options &options) {
  const int sources = options.prompt.has_value() + options.promptFile.has_value() + options.ids.has_value();
  if (sources > 1)
    throw UsageError("only one of -p, -f and --ids can give the prompt");
  if (options.chat && options.ids)
    throw UsageError("--ids can not be used in a chat (-cnv): what is said there is text");
  if (options.chat && !options.logitsFile.empty())
    throw UsageError("--dump-logits can not be used in a chat (-cnv)");
  if (options.generation.logProbabilities && !options.json)
    throw UsageError("--logprobs is for --json: add that");
  if (options.system && !options.chat)
    throw UsageError("-sys is for a chat: add -cnv, or write the system message into the prompt yourself");
}

Options llama::parseOptions(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    std::optional<std::string> value;
    const std::size_t equals = name.find('=');
    if (name.size() > 2 && name.compare(0, 2, "--") == 0 && equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Flag *flag = findFlag(name);
    if (!flag)
      throw UsageError(name.empty() || name[0] != '-' ? "'" + name + "' is no option: the prompt is given by -p"
                                                      : "the option '" + name + "' is unknown");
    if (flag->argument.empty() && value)
      throw UsageError("the option '" + name + "' takes no value");
    if (!flag->argument.empty() && !value) {
      if (++i == argc)
        throw UsageError("the option '" + name + "' needs a value: " + name + " " + std::string(flag->argument));
      value = argv[i];
    }
    flag->apply(options, name, value.value_or(""));
  }
  if (!options.help && !options.version)
    checkCombinations(options);
  return options;
}
