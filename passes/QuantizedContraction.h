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

/// C[m, p, j] += A[m, k] * W[p, k, j] on buffers, as `fold-quantized-weights` makes it. k stands for (b, s, h, q, r):
/// block, group of the block (left out where it has one only), half of a byte (left out for bytes), quad, place in the
/// quad; g stands for (b, s), and
///
///   W = scale[p, b, j] * factor[p, b, s, j] * (integer - zero) + minimum[p, b, j] * minimumFactor[p, b, s, j]
///   A = a[m, g, h, q, r], in f32, or float(a[m, g, h, q, r]) * aScale[m, g], in i8 or i16
///
/// where the factors are 1 with one group in a block, and the integer is made of the byte w[p, g, q, j, r], or of its
/// half h and, above these 4 bits, of bits of the byte high[p, g, j, r]: those of the quads of half 0, then of half 1.
struct QuantizedContraction {
  Value a, aScale;             ///< aScale is null for activations in f32
  Value w, high;               ///< high is null for integers of 4 and 8 bits
  Value scale, minimum;        ///< minimum may be null
  Value factor, minimumFactor; ///< null with one group in a block; minimumFactor is unsigned
  Value c;                     ///< M x P x R
  bool nibbles = false;        ///< whether integers have fewer than 8 bits, from 0 on
  int64_t bits = 8;            ///< of an integer
  int64_t zero = 0;            ///< what is subtracted from a weight's integer
  bool hasSignedFactors = false;
  bool subtractsMinimum = false; ///< instead of adding it

  int64_t highBits() const { return high ? bits - 4 : 0; } ///< of an integer, in `high`
  bool hasIntegerActivations() const { return aScale != nullptr; }
  bool hasWideActivations() const { return cast<MemRefType>(a.getType()).getElementType().isInteger(16); }
  bool hasFactors() const { return factor != nullptr; }
  int64_t halves() const { return nibbles ? 2 : 1; }
  int64_t blocks() const { return weightType().getDimSize(1); } ///< of a row
  int64_t blockGroups() const { return hasFactors() ? weightType().getDimSize(2) : 1; }
  int64_t groups() const { return blocks() * blockGroups(); }               ///< of a row
  int64_t quads() const { return weightType().getDimSize(firstQuadDim()); } ///< per group and half
  int64_t panelWidth() const { return weightType().getDimSize(firstQuadDim() + 1); }
  int64_t depth() const { return groups() * halves() * quads() * 4; }

private:
  MemRefType weightType() const { return cast<MemRefType>(w.getType()); }
  int64_t firstQuadDim() const { return weightType().getRank() - 3; }
};

/// Reads `op` as a contraction with quantised weights that a register tile can serve: its layouts are those of the
/// contract, and no sum of a group's products leaves 32 bits.
FailureOr<QuantizedContraction> matchQuantizedContraction(linalg::GenericOp op);

} // namespace mlir::buddy

#endif // BUDDY_QUANTIZEDCONTRACTION_H
