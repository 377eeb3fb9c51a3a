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

#include "mlir/Dialect/Arith/IR/Arith.h"

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
  virtual void prepare(OpBuilder &builder, Location location) {}

  /// Bytes of a thread's own memory that `preparePanel` wants; 0: there is no such thing.
  virtual int64_t scratchBytes() const { return 0; }

  /// What may be computed once for a panel, where several tiles go over it.
  virtual void preparePanel(OpBuilder &builder, Location location, Value panel, Value scratch) {}

  /// Says which part of the next panel the tiles that follow should fetch into the second-level cache, so that memory
  /// is read while they compute: tile `index` of 2^`shift` or more that go over the panel, one after the other. Null
  /// values: nothing.
  void fetchAhead(Value index, Value shift) {
    aheadIndex = index;
    aheadShift = shift;
  }

  /// C[row .. row + rows, panel, :], over all of K. `isPrepared`: by `preparePanel`.
  virtual void emit(OpBuilder &builder, Location location, int64_t rows, Value row, Value panel, bool isPrepared) = 0;

protected:
  explicit TileKernel(Operation *op) : b(op->getContext()), loc(op->getLoc()) {}

  OpBuilder b; ///< where code is written
  Location loc;
  Value aheadIndex, aheadShift; ///< as fetchAhead says

  void moveTo(OpBuilder &builder, Location location) {
    b.setInsertionPoint(builder.getInsertionBlock(), builder.getInsertionPoint());
    loc = location;
  }

  /// Writes what `body` writes into a nested region.
  template <typename Body> void at(OpBuilder &nested, Body body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
    body();
  }

  Value constant(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }
  Value add(Value lhs, int64_t rhs) { return rhs == 0 ? lhs : b.createOrFold<arith::AddIOp>(loc, lhs, constant(rhs)); }
};

/// The kernel for a contraction's format.
std::unique_ptr<TileKernel> makeTileKernel(const PackedContraction &contraction, const Target &target);

} // namespace mlir::buddy

#endif // BUDDY_TILEKERNEL_H
