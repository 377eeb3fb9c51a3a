//===- Printer.h - An answer on standard output ---------------------------===//

#ifndef BUDDY_APPS_LLAMA_PRINTER_H
#define BUDDY_APPS_LLAMA_PRINTER_H

#include <string>
#include <string_view>

#include "Generation.h"
#include "Options.h"

namespace buddy::llama {

/// Prints the text of an answer, or its ids where there is no vocabulary, as the command line says. Ctrl-C ends it.
class Printer : public Receiver {
public:
  explicit Printer(const Options &options) : visible(!options.json), streams(options.stream) {}

  bool onToken(const GeneratedToken &token) override;
  void onEnd(std::string_view rest) override;
  bool cancelled() override;

private:
  void show(std::string_view text);

  std::string unseen; // without streaming
  bool visible, streams;
};

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_PRINTER_H
