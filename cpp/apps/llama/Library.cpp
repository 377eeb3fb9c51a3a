//===- Library.cpp - A compiled model for other languages -----------------===//
//
// No exception crosses the C interface: each function is wrapped in attempt(), which keeps the sentence.
//
//===----------------------------------------------------------------------===//

#include "Library.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "Generation.h"
#include "ModelConfig.h"
#include "Sampler.h"
#include "Session.h"
#include "buddy/Error.h"
#include "buddy/Threads.h"

using namespace buddy;
using namespace buddy::llama;

struct buddy_llama {
  explicit buddy_llama(const SessionOptions &options) : session(options) {}

  Session session;
};

static thread_local std::string lastError;

/// What `work` returns, or `failure`, with the sentence in lastError.
template <typename Result, typename Work> static Result attempt(Result failure, const Work &work) noexcept {
  try {
    try {
      return work();
    } catch (const std::bad_alloc &) {
      lastError = "out of memory: give a smaller context, or a shorter prompt";
    } catch (const std::exception &error) {
      lastError = error.what();
    }
  } catch (...) {
    lastError.clear(); // no memory even for the sentence
  }
  return failure;
}

/// A copy in memory that buddy_llama_free() releases, never null.
template <typename Element> static Element *copyOf(const Element *elements, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<Element>);
  auto *copy = static_cast<Element *>(std::malloc(std::max<std::size_t>(1, count * sizeof(Element))));
  if (!copy)
    throw std::bad_alloc();
  std::copy_n(elements, count, copy);
  return copy;
}

static std::int64_t giveIds(const std::vector<std::int32_t> &ids, std::int32_t **out) {
  *out = copyOf(ids.data(), ids.size());
  return static_cast<std::int64_t>(ids.size());
}

static const Text &requireText(const buddy_llama &model) {
  if (!model.session.hasText())
    throw Error("this model was built without a tokenizer: give prompts as token ids");
  return model.session.text();
}

static ChatRole roleOf(std::int32_t role) {
  switch (role) {
  case BUDDY_LLAMA_SYSTEM:
    return ChatRole::System;
  case BUDDY_LLAMA_USER:
    return ChatRole::User;
  case BUDDY_LLAMA_ASSISTANT:
    return ChatRole::Assistant;
  default:
    throw Error("a message has the role " + std::to_string(role) + ", which there is not");
  }
}

static GenerationOptions optionsOf(const buddy_llama_request &request, const Session &session) {
  GenerationOptions options;
  options.maxTokens = request.max_tokens;
  options.ignoreEnd = request.ignore_end != 0;
  for (std::size_t i = 0; i < request.stop_count; ++i)
    options.stops.emplace_back(request.stops[i].text, request.stops[i].size);
  if (request.likely_count >= 0)
    options.logProbabilities = static_cast<std::size_t>(std::min(request.likely_count, session.vocabSize()));
  options.sampler.temperature = request.temperature;
  options.sampler.topK = request.top_k;
  options.sampler.topP = request.top_p;
  options.sampler.minP = request.min_p;
  options.sampler.repeatPenalty = request.repeat_penalty;
  options.sampler.presencePenalty = request.presence_penalty;
  options.sampler.frequencyPenalty = request.frequency_penalty;
  options.sampler.seed = request.seed;
  return options;
}

namespace {

/// Hands an answer to C.
class CReceiver : public Receiver {
public:
  CReceiver(buddy_llama_receiver function, void *itsContext, const std::int32_t *flag)
      : receive(function), context(itsContext), isCancelled(flag) {}

  bool onToken(const GeneratedToken &token) override {
    buddy_llama_token passed = {token.id, token.text.data(), token.text.size(), 0, nullptr, 0};
    if (token.logProbabilities) {
      likely.clear();
      for (const TokenLogProbability &one : token.logProbabilities->likeliest)
        likely.push_back({one.id, one.logProbability});
      passed.log_probability = token.logProbabilities->chosen.logProbability;
      passed.likely = likely.data();
      passed.likely_count = likely.size();
    }
    return receive(context, &passed) == 0;
  }

  void onEnd(std::string_view rest) override {
    const buddy_llama_token passed = {-1, rest.data(), rest.size(), 0, nullptr, 0};
    receive(context, &passed);
  }

  bool cancelled() override { return isCancelled && __atomic_load_n(isCancelled, __ATOMIC_RELAXED) != 0; }

private:
  buddy_llama_receiver receive;
  void *context;
  const std::int32_t *isCancelled;
  std::vector<buddy_llama_likelihood> likely;
};

} // namespace

static std::int32_t codeOf(Stop stop) {
  switch (stop) {
  case Stop::End:
    return BUDDY_LLAMA_STOP_END;
  case Stop::Length:
    return BUDDY_LLAMA_STOP_LENGTH;
  case Stop::StopString:
    return BUDDY_LLAMA_STOP_STRING;
  case Stop::Context:
    return BUDDY_LLAMA_STOP_CONTEXT;
  case Stop::Interrupt:
    return BUDDY_LLAMA_STOP_CANCELLED;
  }
  return BUDDY_LLAMA_STOP_CANCELLED;
}

int32_t buddy_llama_interface(void) { return BUDDY_LLAMA_INTERFACE; }

const char *buddy_llama_error(void) {
  return lastError.empty() ? "out of memory: give a smaller context, or a shorter prompt" : lastError.c_str();
}

buddy_llama *buddy_llama_open(const char *folder, int64_t context, int32_t threads, int32_t sessions) {
  return attempt<buddy_llama *>(nullptr, [&] {
    SessionOptions options;
    options.modelDir = folder;
    options.context = context == -1 ? Session::maxContext() : context;
    options.threads = threads;
    options.caches = sessions;
    auto loaded = std::make_unique<buddy_llama>(options);
    if (!loaded->session.hasText() && !model::vocabFile.empty())
      throw Error("the vocabulary file '" + options.modelDir + "/" + std::string(model::vocabFile) +
                  "' does not exist: take it from the build that made the weights file");
    return loaded.release();
  });
}

void buddy_llama_close(buddy_llama *model) { delete model; }

void buddy_llama_describe(const buddy_llama *model, buddy_llama_info *info) {
  const Session &session = model->session;
  info->model_id = session.modelId().c_str();
  info->context = session.contextSize();
  info->vocab_size = session.vocabSize();
  info->has_text = session.hasText();
  info->threads = threadCount();
  info->sessions = static_cast<std::int32_t>(session.caches().count());
  info->session_bytes = session.caches().bytesEach();
  info->chat_unavailable = nullptr;
  if (!session.hasText())
    info->chat_unavailable = "it was built without a tokenizer";
  else if (!session.text().chat())
    info->chat_unavailable = session.text().chatUnavailableReason().c_str();
}

int64_t buddy_llama_tokenize(const buddy_llama *model, const char *text, size_t size, int32_t add_special,
                             int32_t parse_special, int32_t **ids) {
  return attempt<std::int64_t>(-1, [&] {
    return giveIds(requireText(*model).encode(std::string_view(text, size), add_special != 0, parse_special != 0), ids);
  });
}

int64_t buddy_llama_detokenize(const buddy_llama *model, const int32_t *ids, size_t count, int32_t skip_special,
                               char **text) {
  return attempt<std::int64_t>(-1, [&] {
    const std::string decoded = requireText(*model).decode({ids, ids + count}, skip_special != 0);
    *text = copyOf(decoded.data(), decoded.size());
    return static_cast<std::int64_t>(decoded.size());
  });
}

int64_t buddy_llama_render_chat(const buddy_llama *model, const buddy_llama_message *messages, size_t count,
                                int32_t **ids) {
  return attempt<std::int64_t>(-1, [&] {
    const Text &text = requireText(*model);
    if (!text.chat())
      throw Error("this model can not chat: " + text.chatUnavailableReason());
    std::vector<ChatMessage> turns;
    for (std::size_t i = 0; i < count; ++i)
      turns.push_back({roleOf(messages[i].role), std::string(messages[i].content, messages[i].size)});
    return giveIds(text.encode(text.chat()->render(turns, /*addGenerationPrompt=*/true), /*addSpecial=*/false), ids);
  });
}

void buddy_llama_free(void *memory) { std::free(memory); }

const char *buddy_llama_token_bytes(const buddy_llama *model, int32_t id, size_t *size) {
  const std::string_view bytes = model->session.hasText() ? model->session.text().tokenBytes(id) : std::string_view();
  *size = bytes.size();
  return bytes.data();
}

int32_t buddy_llama_generate(buddy_llama *model, const int32_t *ids, size_t count, const buddy_llama_request *request,
                             buddy_llama_receiver receiver, void *context, buddy_llama_answer *answer) {
  return attempt<std::int32_t>(-1, [&] {
    Session &session = model->session;
    const GenerationOptions options = optionsOf(*request, session);
    if (!options.stops.empty())
      requireText(*model);
    Sampler sampler(options.sampler, session.vocabSize());
    CReceiver destination(receiver, context, request->cancelled);
    const std::vector<std::int32_t> prompt(ids, ids + count);
    const Answer made = generate(session, sampler, prompt, options, destination);
    answer->stop = codeOf(made.stop);
    answer->prompt_tokens = static_cast<std::int64_t>(count);
    answer->cached_tokens = made.stop == Stop::Interrupt && made.ids.empty()
                                ? 0 // the prompt was not evaluated to its end
                                : static_cast<std::int64_t>(count) - made.prefilled;
    answer->generated_tokens = static_cast<std::int64_t>(made.ids.size());
    answer->prefill_seconds = made.prefillSeconds;
    answer->decode_seconds = made.decodeSeconds;
    return 0;
  });
}
