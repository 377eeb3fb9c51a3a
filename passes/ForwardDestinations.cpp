//===- ForwardDestinations.cpp - Results in the caller's buffers ----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_FORWARDDESTINATIONS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

bool isPlain(Value buffer) {
  auto type = dyn_cast<MemRefType>(buffer.getType());
  return type && type.hasStaticShape() && type.getLayout().isIdentity();
}

/// Whether the buffer and its views are used in front of `end` only, in its block.
bool isUsedBefore(Value buffer, Operation *end) {
  return llvm::all_of(buffer.getUsers(), [&](Operation *user) {
    if (user == end)
      return true;
    Operation *ancestor = end->getBlock()->findAncestorOpInBlock(*user);
    if (!ancestor || !ancestor->isBeforeInBlock(end))
      return false;
    return llvm::all_of(user->getResults(), [&](Value result) {
      return !isa<BaseMemRefType>(result.getType()) || (isa<ViewLikeOpInterface>(user) && isUsedBefore(result, end));
    });
  });
}

/// Replaces the buffer that `copy` moves to an argument of the function by that argument.
void forward(memref::CopyOp copy) {
  auto argument = dyn_cast<BlockArgument>(copy.getTarget());
  if (!argument || !argument.hasOneUse() || argument.getOwner() != copy->getBlock() || !isPlain(argument))
    return;
  // From the copied view back to the allocation.
  SmallVector<Operation *> reshapes;
  Value source = copy.getSource();
  while (isPlain(source) && isa_and_nonnull<memref::CollapseShapeOp, memref::ExpandShapeOp>(source.getDefiningOp())) {
    reshapes.push_back(source.getDefiningOp());
    source = source.getDefiningOp()->getOperand(0);
  }
  auto alloc = source.getDefiningOp<memref::AllocOp>();
  if (!alloc || !isPlain(source) || alloc->getBlock() != copy->getBlock() || !isUsedBefore(source, copy))
    return;
  OpBuilder b(alloc);
  Value buffer = argument;
  for (Operation *reshape : reshapes) {
    auto type = cast<MemRefType>(reshape->getOperand(0).getType());
    if (auto expand = dyn_cast<memref::ExpandShapeOp>(reshape))
      buffer = memref::CollapseShapeOp::create(b, copy.getLoc(), type, buffer, expand.getReassociationIndices());
    else
      buffer = memref::ExpandShapeOp::create(b, copy.getLoc(), type, buffer,
                                             cast<memref::CollapseShapeOp>(reshape).getReassociationIndices());
  }
  alloc.replaceAllUsesWith(buffer);
  alloc.erase();
  copy.erase();
}

struct ForwardDestinations : buddy::impl::ForwardDestinationsBase<ForwardDestinations> {
  void runOnOperation() override {
    // The caller's buffers do not overlap: of an entry point that is known.
    if (!getOperation()->hasAttr("buddy.entry") || getOperation().isExternal())
      return;
    SmallVector<memref::CopyOp> copies(getOperation().getBody().front().getOps<memref::CopyOp>());
    llvm::for_each(copies, forward);
  }
};

} // namespace
