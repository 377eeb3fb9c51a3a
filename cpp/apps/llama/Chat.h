//===- Chat.h - A conversation at a terminal or through a pipe ------------===//

#ifndef BUDDY_APPS_LLAMA_CHAT_H
#define BUDDY_APPS_LLAMA_CHAT_H

#include <functional>

#include "Generation.h"
#include "Options.h"

namespace buddy::llama {

/// What a chat tells its caller.
struct ChatReceiver {
  std::function<void(const Answer &)> answered; // after each answer
  std::function<void()> statisticsWanted;       // for /stats
};

/// Takes a turn from each line of standard input, answers it, and goes on until the input ends. A line that begins with
/// a slash is a command; /help lists them. Each turn's prompt is the model's own template of the whole conversation;
/// the part of it that the caches hold is not evaluated again. Returns the number of lines that could not be taken, for
/// a reason that was told on standard error. Throws Error when the model has no template.
std::size_t chat(Session &session, Sampler &sampler, const Options &options, const ChatReceiver &receiver);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_CHAT_H
