//===- Chat.h - A conversation that keeps its history ---------------------===//

#ifndef BUDDY_APPS_LLAMA_CHAT_H
#define BUDDY_APPS_LLAMA_CHAT_H

#include <functional>

#include "Generation.h"
#include "Options.h"

namespace buddy::llama {

/// Takes a turn from each line of standard input, answers it, and calls `report` with the answer, until the input ends.
/// Each turn's prompt is the model's own template of the whole conversation; the part of it that the caches hold is
/// not evaluated again. Throws Error when the model has no template or the conversation fills the context.
void chat(Session &session, Sampler &sampler, const Options &options,
          const std::function<void(const Answer &)> &report);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_CHAT_H
