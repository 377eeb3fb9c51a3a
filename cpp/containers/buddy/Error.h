//===- Error.h - The one exception of buddy's C++ parts -------------------===//
//
// Everything that can go wrong with a user's input is thrown as buddy::Error. Its what() is one sentence for the user:
// what is wrong, where, and what to do about it.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_ERROR_H
#define BUDDY_ERROR_H

#include <stdexcept>

namespace buddy {

class Error : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

} // namespace buddy

#endif // BUDDY_ERROR_H
