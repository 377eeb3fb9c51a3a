//===- display_width_test.cpp - Columns, as the C library counts them -----===//

#include <clocale>
#include <cwchar>

#include "../../cpp/apps/llama/DisplayWidth.cpp" // the program's part of it is no library that tests could link
#include "Check.h"

/// Versions of Unicode differ, so a few code points may; those that people write may not.
static void compareWithTheLibrary() {
  int known = 0, different = 0;
  for (char32_t c = 0x20; c < 0x110000; ++c) {
    const int width = wcwidth(static_cast<wchar_t>(c));
    if (width < 0)
      continue;
    ++known;
    different += width != displayWidth(c);
  }
  CHECK(known > 100'000);
  CHECK(different < known / 300);
}

int main() {
  for (char32_t c : {U'a', U'~', U'é', U'ß', U'ж', U'ש', U'ع', U'अ', U'ก', U'ｱ', U'→', U'€', U'\u00a0'})
    CHECK(displayWidth(c) == 1);
  for (char32_t c : {U'中', U'あ', U'ア', U'한', U'Ａ', U'、', U'😀', U'🚀', U'✅', U'\U00020000'})
    CHECK(displayWidth(c) == 2);
  for (char32_t c : {U'\u0301', U'\u05b0', U'\u064e', U'\u0941', U'\u200d', U'\ufe0f', U'\ufeff', U'\u20dd'})
    CHECK(displayWidth(c) == 0);
  if (std::setlocale(LC_CTYPE, "C.UTF-8"))
    compareWithTheLibrary();
}
