//===- Interrupt.h - Ctrl-C stops an answer -------------------------------===//

#ifndef BUDDY_APPS_LLAMA_INTERRUPT_H
#define BUDDY_APPS_LLAMA_INTERRUPT_H

namespace buddy::llama {

/// From now on the first Ctrl-C sets a flag and the second ends the process; closed pipes are errors, not signals.
void catchSignals();

/// True after Ctrl-C.
bool interrupted() noexcept;

/// Ready for the next Ctrl-C.
void clearInterrupt() noexcept;

/// While this lives, a Ctrl-C that ends the process removes a file that is being written. There is one at a time.
class RemovedOnExit {
public:
  /// `path` must outlive this; null for no file.
  explicit RemovedOnExit(const char *path) noexcept;
  RemovedOnExit(const RemovedOnExit &) = delete;
  RemovedOnExit &operator=(const RemovedOnExit &) = delete;
  ~RemovedOnExit();
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_INTERRUPT_H
