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

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_INTERRUPT_H
