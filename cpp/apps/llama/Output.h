//===- Output.h - Standard output -----------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_OUTPUT_H
#define BUDDY_APPS_LLAMA_OUTPUT_H

#include <string_view>

namespace buddy::llama {

/// Thrown when there is nothing left to do: whoever reads standard output has gone, or the user left.
struct QuietExit {};

/// Writes to standard output at once. Throws QuietExit, or Error when it can not be written for another reason.
void print(std::string_view text);

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_OUTPUT_H
