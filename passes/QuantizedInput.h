//===- QuantizedInput.h - Activations as quantised tiles read them -*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_QUANTIZEDINPUT_H
#define BUDDY_QUANTIZEDINPUT_H

#include "IntegerDot.h"
#include "QuantizedContraction.h"

namespace mlir::buddy {

/// What the tiles of a contraction read of its activations, computed once before them: every buffer is M x something.
/// Contractions with the same activations that stand side by side share it.
class QuantizedInput {
public:
  QuantizedInput() = default;

  /// Writes the code. `excess` is what the weights' integers in the tiles are too large by.
  QuantizedInput(OpBuilder &b, Location loc, const QuantizedContraction &contraction, int64_t excess, bool pairs);

  Value offsets;  ///< M x G: -excess * sum_k a[m, g, k], of the products' type; null if excess is 0
  Value sums;     ///< M x G: f32, sum_k A[m, g, k], negated if minima are subtracted; null without minima
  Value integers; ///< M x K: the activations' integers

  /// M x (G * halves * quads) of i32; M x twice as many of i16 for activations of 16 bits.
  Value words(QuadWord word) const { return word == QuadWord::bytes ? bytes : word == QuadWord::evens ? evens : odds; }

private:
  Value bytes, evens, odds;
};

} // namespace mlir::buddy

#endif // BUDDY_QUANTIZEDINPUT_H
