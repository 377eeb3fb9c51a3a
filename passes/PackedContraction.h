//===- PackedContraction.h - Contractions with packed weights ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_PACKEDCONTRACTION_H
#define BUDDY_PACKEDCONTRACTION_H

#include "mlir/Dialect/Linalg/IR/Linalg.h"

namespace mlir::buddy {

/// C[m, p, j] += A[m, k] * W[p, k, j] on buffers, as `fold-packed-weights` makes it.
struct PackedContraction {
  linalg::GenericOp op;
  Value a;                 ///< M x K
  Value w;                 ///< P x K x R
  Value c;                 ///< M x P x R
  linalg::FillOp zeroFill; ///< C's initialisation right before; null if C holds a value to add to

  int64_t staticRows() const { return cast<MemRefType>(c.getType()).getDimSize(0); }
  int64_t panelWidth() const { return cast<MemRefType>(c.getType()).getDimSize(2); }
};

/// Whether a body with two inputs and an output is out + a * b, and no more. `mayWiden`: a and b may be floats that are
/// widened first.
bool isMultiplyAdd(Block *body, bool mayWiden = false);

/// Reads `op` as a packed contraction whose panels a register tile can serve.
FailureOr<PackedContraction> matchPackedContraction(linalg::GenericOp op);

/// Whether `next` may run in one loop with the contractions `group` before it: it has the same input and the same kind
/// of panels, and what stands in between is no more than allocations, views and fills of other buffers.
bool joinsGroup(const PackedContraction &next, ArrayRef<PackedContraction> group);

} // namespace mlir::buddy

#endif // BUDDY_PACKEDCONTRACTION_H
