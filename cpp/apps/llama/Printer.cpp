//===- Printer.cpp - An answer on standard output -------------------------===//

#include "Printer.h"

#include "Interrupt.h"
#include "Output.h"

using namespace buddy::llama;

bool Printer::onToken(const GeneratedToken &token) {
  show(token.hasText ? std::string(token.text) : std::to_string(token.id) + " ");
  return true;
}

void Printer::onEnd(std::string_view rest) {
  show(rest);
  if (visible)
    print(unseen + "\n");
}

bool Printer::cancelled() { return interrupted(); }

void Printer::show(std::string_view text) {
  if (visible && streams)
    print(text);
  else if (visible)
    unseen += text;
}
