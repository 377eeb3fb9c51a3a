//===- IntegerDot.h - Exact sums of products of small integers --*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_INTEGERDOT_H
#define BUDDY_INTEGERDOT_H

#include "Target.h"

#include "mlir/IR/Builders.h"

#include <memory>

namespace mlir::buddy {

/// The activations of one quad (four consecutive k), as a product takes them: 32 bits, the same for every lane.
enum class QuadWord {
  bytes,  ///< a0, a1, a2, a3 as i8
  evens,  ///< a0, a2 as i16
  odds,   ///< a1, a3 as i16
  place0, ///< a0 as i32, and so on
  place1,
  place2,
  place3,
};

/// One factor of the products with a vector of stored weights.
struct QuadFactor {
  Value weights;
  int64_t half = 0; ///< of the bytes that it came from
  QuadWord word = QuadWord::bytes;
};

/// Sums of products of activations in [-127, 127] and weights (bytes in [-128, 127], or integers of 4 to 6 bits from 0
/// on, of which two share a byte with their lower 4 bits). A vector
/// of weights holds a quad of one panel row in each 32-bit lane, and each lane sums on its own, modulo 2^32; nothing
/// saturates. All forms give the same integers.
class IntegerDot {
public:
  virtual ~IntegerDot();

  /// The factors of a vector of stored bytes, 4 x lanes of i8. The weights in them are too large by `bias`. `upper`:
  /// for integers of more than 4 bits what is past these, at its place, of either half.
  virtual SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const = 0;
  virtual int64_t factorsPerQuad() const = 0;
  virtual int64_t bias() const { return 0; }

  /// sum + the products of one factor. `word` is its activations, lanes of i32. `sum` is null for none, if sums are
  /// narrow.
  virtual Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const = 0;

  /// Whether the weights in factors may be less than zero and more than the formats' integers: what is subtracted from
  /// those may then be subtracted beforehand.
  virtual bool takesSigned() const { return false; }

  /// Whether one instruction multiplies and adds.
  virtual bool isFused() const { return false; }

  /// How many factors a narrow sum holds before it must be widened, at least those of a quad; 0: sums are lanes of i32
  /// from the start.
  virtual int64_t narrowCapacity() const { return 0; }
  virtual Value widen(OpBuilder &b, Location loc, Value narrow) const { return narrow; }

  /// Whether factors want evens and odds rather than bytes.
  virtual bool takesPairs() const { return false; }
};

/// The lanes of i32 that the target's form works on.
int64_t integerDotLanes(const Target &target);

/// The form for vectors of `lanes` lanes: the target's, or plain vector code where that has no such vectors. `bits`: of
/// the weights' integers; `wide`: activations are of 16 bits.
std::unique_ptr<IntegerDot> makeIntegerDot(Int8Dot form, int64_t bits, bool wide, int64_t lanes);

/// One weight of each lane's quad: that at `place`, in `half` of its byte if weights are nibbles. `quads`, and `upper`
/// for what is past a nibble's 4 bits (null for nothing), are lanes of i32.
Value integerOfQuad(OpBuilder &b, Location loc, Value quads, Value upper, bool nibbles, int64_t half, int64_t place);

} // namespace mlir::buddy

#endif // BUDDY_INTEGERDOT_H
