//===- Session.cpp - A loaded model and what its caches hold --------------===//

#include "Session.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "ModelConfig.h"
#include "ModelProfile.h"
#include "buddy/CpuFeatures.h"
#include "buddy/Error.h"
#include "buddy/Profile.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::llama;

static constexpr bool canCheckEveryFeature() {
  for (std::size_t i = 0; i < model::cpuFeatures.size(); ++i)
    if (!isKnownCpuFeature(model::cpuFeatures.data()[i]))
      return false;
  return true;
}
static_assert(canCheckEveryFeature(), "the model's target needs a CPU feature that buddy/CpuFeatures.h does not know");

/// Generated code uses these without asking.
static void requireCpuFeatures() {
  const std::string missing = missingCpuFeatures(model::cpuFeatures.data(), model::cpuFeatures.size());
  if (!missing.empty())
    throw Error("this program was built for the target " + std::string(model::target) +
                " and this machine's CPU lacks " + missing + ": build it again for this machine");
}

/// The folder of the running program.
static std::string programFolder() {
  std::string path(256, '\0');
  while (true) {
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
    if (length < 0)
      throw Error(std::string("the program can not find its own folder (") + std::strerror(errno) +
                  "): name the model's folder with -m");
    if (static_cast<std::size_t>(length) < path.size()) {
      path.resize(static_cast<std::size_t>(length));
      return path.substr(0, path.rfind('/'));
    }
    path.resize(2 * path.size());
  }
}

static std::string inModelFolder(const SessionOptions &options, std::string_view file) {
  const std::string folder = options.modelDir.empty() ? programFolder() : options.modelDir;
  return folder + "/" + std::string(file);
}

static Weights openWeights(const SessionOptions &options) {
  requireCpuFeatures();
  Weights weights = Weights::open(inModelFolder(options, model::weightsFile), model::abi);
  if (options.verify)
    weights.verify();
  return weights;
}

/// The vocabulary, which must be of the same model; nullopt, with the reason, when there is none.
static std::optional<Text> loadText(const SessionOptions &options, const Weights &weights, std::string &missing) {
  if (model::vocabFile.empty()) {
    missing = "this model was built without a tokenizer";
    return std::nullopt;
  }
  const std::string path = inModelFolder(options, model::vocabFile);
  if (access(path.c_str(), F_OK) != 0) {
    missing = "the vocabulary file '" + path + "' does not exist";
    return std::nullopt;
  }
  Text text = Text::load(path);
  if (text.abi() != model::abi)
    throw Error("the vocabulary file '" + path + "' belongs to another program: its ABI is " + text.abi() +
                ", this program's ABI is " + std::string(model::abi) +
                "; build both from the same model with the same options");
  if (text.modelId() != weights.modelId())
    throw Error("the vocabulary file '" + path + "' and the weights file '" + weights.path() +
                "' belong to different models (" + text.modelId() + " and " + weights.modelId() +
                "): take both from one build");
  return text;
}

static constexpr std::int64_t cacheRowBytes = model::cacheRowElements * sizeof(model::CacheElement);

/// A cache as the generated code takes it: (layer, kv head, position, row).
static MemRef<model::CacheElement, 4> elementsOf(MemRef<std::int8_t, 4> &bytes) {
  return MemRef<model::CacheElement, 4>::view(reinterpret_cast<model::CacheElement *>(bytes.data()),
                                              {{bytes.size(0), bytes.size(1), bytes.size(2), model::cacheRowElements}});
}

/// Room for the temporaries of one call, whichever entry point it is. Pages that are never used take no memory.
static MemRef<std::int8_t, 1> makeArena(std::int64_t tokens) {
  return MemRef<std::int8_t, 1>::lazy({{std::max(model::prefillArenaSize(tokens), model::decodeArenaSize(1))}});
}

/// The number of positions that the options ask for.
static std::int64_t contextOf(const SessionOptions &options) {
  const std::int64_t size = options.context ? options.context : Session::defaultContext();
  if (size < 1 || size > Session::maxContext())
    throw Error("a context of " + std::to_string(size) + " positions was asked for, and this model has 1 to " +
                std::to_string(Session::maxContext()) + ": give another one");
  return size;
}

static std::int64_t ubatchOf(const SessionOptions &options) {
  return std::clamp<std::int64_t>(options.ubatch, 1, contextOf(options));
}

Session::Session(const SessionOptions &options)
    : weights(openWeights(options)), base(weights.memref()), vocabulary(loadText(options, weights, missingText)),
      kvCaches(options.caches, {{model::layers, model::kvHeads, contextOf(options), cacheRowBytes}}),
      batch(MemRef<std::int64_t, 2>::zeros({{1, ubatchOf(options)}})),
      lastLogits(MemRef<float, 3>::zeros({{1, 1, model::vocabSize}})), arena(makeArena(batch.size(1))) {
  setThreadCount(options.threads ? options.threads : allowedCpuCount());
}

std::int64_t Session::defaultContext() noexcept { return std::min<std::int64_t>(4096, model::contextLength); }
std::int64_t Session::maxContext() noexcept { return model::contextLength; }
std::string_view Session::abi() const noexcept { return model::abi; }

const Text &Session::text() const {
  if (!vocabulary)
    throw Error(missingText + ": give the prompt as token ids with --ids, without --stop and -cnv");
  return *vocabulary;
}

bool Session::isEnd(std::int32_t id) const {
  if (vocabulary)
    return vocabulary->isEnd(id);
  return std::find(model::endIds.begin(), model::endIds.end(), id) != model::endIds.end();
}

std::size_t Session::keepPrefix(const std::vector<std::int32_t> &ids) {
  kvCaches.choose(ids);
  std::vector<std::int32_t> &kept = kvCaches.current().ids;
  kept.resize(std::min(kept.size(), ids.empty() ? 0 : ids.size() - 1));
  return kept.size();
}

bool Session::feed(const std::int32_t *ids, std::size_t count, const std::function<bool()> &cancelled) {
  while (count > 0) {
    if (cancelled && cancelled())
      return false;
    const std::size_t part = std::min(count, static_cast<std::size_t>(batch.size(1)));
    std::copy(ids, ids + part, batch.data());
    const bool wantsEach = model::hasScore && receiveLogits && part > 1;
    if (wantsEach)
      evaluateEach(part);
    else
      evaluate(part);
    kvCaches.current().ids.insert(kvCaches.current().ids.end(), ids, ids + part);
    if (receiveLogits && !wantsEach)
      receiveLogits(lastLogits.data());
    ids += part;
    count -= part;
  }
  return true;
}

void Session::warmUp(const std::vector<std::int32_t> &ids) {
  const std::size_t count =
      std::min({ids.size(), static_cast<std::size_t>(batch.size(1)), static_cast<std::size_t>(contextSize())});
  if (count == 0)
    return;
  weights.populate();
  std::copy_n(ids.data(), count, batch.data());
  evaluate(count);
  evaluate(1);
}

/// Runs the model on the first `count` ids of the batch.
void Session::evaluate(std::size_t count) {
  const auto run = count == 1 ? model::decode : model::prefill;
  const char *names = count == 1 ? decodeProfileNames() : prefillProfileNames();
  auto ids = MemRef<std::int64_t, 2>::view(batch.data(), {{1, static_cast<std::int64_t>(count)}});
  MemRef<model::CacheElement, 4> keyElements = elementsOf(keys()), valueElements = elementsOf(values());
  buddy_profile_begin(names, wholeCallRegion);
  run(&base, &ids, static_cast<std::int64_t>(size()), &keyElements, &valueElements, &lastLogits, &arena);
  buddy_profile_end(names, wholeCallRegion);
}

/// As evaluate, by way of the entry point score, whose logits of every token are received.
void Session::evaluateEach(std::size_t count) {
  const std::int64_t tokens = static_cast<std::int64_t>(count);
  auto ids = MemRef<std::int64_t, 2>::view(batch.data(), {{1, tokens}});
  auto each = MemRef<float, 3>::lazy({{1, tokens, model::vocabSize}});
  auto room = MemRef<std::int8_t, 1>::lazy({{model::scoreArenaSize(tokens)}});
  MemRef<model::CacheElement, 4> keyElements = elementsOf(keys()), valueElements = elementsOf(values());
  buddy_profile_begin(scoreProfileNames(), wholeCallRegion);
  model::score(&base, &ids, static_cast<std::int64_t>(size()), &keyElements, &valueElements, &each, &room);
  buddy_profile_end(scoreProfileNames(), wholeCallRegion);
  for (std::int64_t row = 0; row < tokens; ++row)
    receiveLogits(each.data() + row * model::vocabSize);
  std::copy_n(each.data() + (tokens - 1) * model::vocabSize, model::vocabSize, lastLogits.data());
}
