//===- Check.h - Assertions of the container tests ------------------------===//
//
// A test program is a main() of checks. A failed one says what and where, and the program ends with 1.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TESTS_CHECK_H
#define BUDDY_TESTS_CHECK_H

#include <cstdio>
#include <cstdlib>
#include <string>

#include "buddy/Error.h"

#define CHECK(...)                                                                                                     \
  do {                                                                                                                 \
    if (!(__VA_ARGS__)) {                                                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #__VA_ARGS__);                                 \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (false)

/// The message of the buddy::Error that `action` throws; fails when it throws none.
template <typename Action> std::string errorOf(Action action) {
  try {
    action();
  } catch (const buddy::Error &error) {
    return error.what();
  }
  std::fprintf(stderr, "an error was expected and none came\n");
  std::exit(1);
}

#endif // BUDDY_TESTS_CHECK_H
