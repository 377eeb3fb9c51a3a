//===- TileKernel.h - What is computed in one register tile -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TILEKERNEL_H
#define BUDDY_TILEKERNEL_H

#include "PackedContraction.h"
#include "Target.h"

#include <memory>

namespace mlir::buddy {

/// Writes the code of register tiles for one contraction. The loops around tiles are the same for every format of
/// weights; what a tile loads and how it sums is the kernel's.
class TileKernel {
public:
  virtual ~TileKernel();

  /// Rows of a full tile.
  virtual int64_t tileRows() const = 0;

  /// Bytes of A that a tile reads for each row; 0 where they are unknown.
  virtual int64_t rowBytes() const = 0;

  /// What has to be computed once, before the parallel loop.
  virtual void prepare(OpBuilder &b, Location loc) {}

  /// Says which part of the next panel the tiles that follow should fetch into the second-level cache, so that memory
  /// is read while they compute: tile `index` of 2^`shift` or more that go over the panel, one after the other. Null
  /// values: nothing.
  virtual void fetchAhead(Value index, Value shift) {}

  /// C[row .. row + rows, panel, :], over all of K.
  virtual void emit(OpBuilder &b, Location loc, int64_t rows, Value row, Value panel) = 0;
};

/// The kernel for a contraction's format.
std::unique_ptr<TileKernel> makeTileKernel(const PackedContraction &contraction, const Target &target);

} // namespace mlir::buddy

#endif // BUDDY_TILEKERNEL_H
