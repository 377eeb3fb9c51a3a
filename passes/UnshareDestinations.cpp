//===- UnshareDestinations.cpp - A destination for every op ---------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_UNSHAREDESTINATIONS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// Clones `op` before the owner of each use but the first.
void cloneForEachUse(Operation *op) {
  for (OpOperand &use : llvm::make_early_inc_range(llvm::drop_begin(op->getResult(0).getUses()))) {
    OpBuilder b(use.getOwner());
    use.set(b.clone(*op)->getResult(0));
  }
}

/// A value that goes to several destinations is copied on its way to each but the first: materialised in place in one
/// of them, it could not be read for the next.
void copyForEachDestination(bufferization::MaterializeInDestinationOp op, llvm::DenseSet<Value> &seen) {
  if (!isa<RankedTensorType>(op.getDest().getType()) || seen.insert(op.getSource()).second)
    return;
  OpBuilder b(op.getContext());
  b.setInsertionPointAfterValue(op.getSource());
  auto type = cast<RankedTensorType>(op.getSource().getType());
  SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(b, op.getLoc(), op.getSource());
  Value empty = tensor::EmptyOp::create(b, op.getLoc(), sizes, type.getElementType());
  auto copy = linalg::CopyOp::create(b, op.getLoc(), op.getSource(), empty);
  op.getSourceMutable().assign(copy.getResult(0));
}

struct UnshareDestinations : buddy::impl::UnshareDestinationsBase<UnshareDestinations> {
  void runOnOperation() override {
    llvm::DenseSet<Value> materialised;
    getOperation().walk(
        [&](bufferization::MaterializeInDestinationOp op) { copyForEachDestination(op, materialised); });
    // Users before what they use: the clones of fills need tensors of their own.
    SmallVector<Operation *> fills, empties;
    getOperation().walk([&](linalg::FillOp op) {
      if (op.hasPureTensorSemantics())
        fills.push_back(op);
    });
    llvm::for_each(llvm::reverse(fills), cloneForEachUse);
    getOperation().walk([&](tensor::EmptyOp op) { empties.push_back(op); });
    llvm::for_each(empties, cloneForEachUse);
  }
};

} // namespace
