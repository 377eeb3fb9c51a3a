//===- Interrupt.cpp - Ctrl-C stops an answer -----------------------------===//

#include "Interrupt.h"

#include <atomic>
#include <csignal>

#include <signal.h>
#include <unistd.h>

using namespace buddy;

static volatile std::sig_atomic_t flag = 0;
static std::atomic<const char *> unfinished{nullptr}; // the file that RemovedOnExit names
static_assert(std::atomic<const char *>::is_always_lock_free, "a signal handler reads it");

static void onInterrupt(int) {
  if (flag) {
    if (const char *path = unfinished.load())
      unlink(path);
    _exit(130); // what a shell reports for a process that SIGINT ended
  }
  flag = 1;
}

void llama::catchSignals() {
  // Without SA_RESTART: Ctrl-C also ends the wait for the next line.
  struct sigaction action = {};
  action.sa_handler = onInterrupt;
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

bool llama::interrupted() noexcept { return flag != 0; }

void llama::clearInterrupt() noexcept { flag = 0; }

llama::RemovedOnExit::RemovedOnExit(const char *path) noexcept { unfinished = path; }

llama::RemovedOnExit::~RemovedOnExit() { unfinished = nullptr; }
