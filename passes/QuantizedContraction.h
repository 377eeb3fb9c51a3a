//===- QuantizedContraction.h - Contractions with quantised weights -*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_QUANTIZEDCONTRACTION_H
#define BUDDY_QUANTIZEDCONTRACTION_H

#include "PackedContraction.h"

namespace mlir::buddy {

/// C[m, p, j] += A[m, k] * W[p, k, j] on buffers, as `fold-quantized-weights` makes it. k stands for (g, h, q, r):
/// group, half of a byte (nibbles only), quad, place in the quad, and
///
///   W = s[p, g, j] * (integer(w[p, g, q, j, r], h) - zero) + minimum[p, g, j]
///   A = a[m, g, h, q, r], in f32, or float(a[m, g, h, q, r]) * aScale[m, g], in i8 or i16
struct QuantizedContraction {
  Value a, aScale;         ///< aScale is null for activations in f32
  Value w, scale, minimum; ///< minimum may be null
  Value c;                 ///< M x P x R
  bool nibbles = false;    ///< two weights in a byte, 0 to 15 each; else one, -128 to 127
  int64_t zero = 0;        ///< what is subtracted from a weight's integer

  bool hasIntegerActivations() const { return aScale != nullptr; }
  bool hasWideActivations() const { return cast<MemRefType>(a.getType()).getElementType().isInteger(16); }
  int64_t halves() const { return nibbles ? 2 : 1; }
  int64_t groups() const { return weightType().getDimSize(1); }
  int64_t quads() const { return weightType().getDimSize(2); } ///< per group and half
  int64_t panelWidth() const { return weightType().getDimSize(3); }
  int64_t depth() const { return groups() * halves() * quads() * 4; }

private:
  MemRefType weightType() const { return cast<MemRefType>(w.getType()); }
};

/// Reads `op` as a contraction with quantised weights that a register tile can serve: its layouts are those of the
/// contract, and no sum of a group's products leaves 32 bits.
FailureOr<QuantizedContraction> matchQuantizedContraction(linalg::GenericOp op);

} // namespace mlir::buddy

#endif // BUDDY_QUANTIZEDCONTRACTION_H
