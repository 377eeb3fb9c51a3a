//===- DeallocateLocalBuffers.cpp - Free buffers where they were made -----===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Bufferization/Transforms/BufferViewFlowAnalysis.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_DEALLOCATELOCALBUFFERS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

struct DeallocateLocalBuffers : buddy::impl::DeallocateLocalBuffersBase<DeallocateLocalBuffers> {
  void runOnOperation() override {
    SmallVector<memref::AllocOp> allocations;
    getOperation().walk([&](memref::AllocOp op) { allocations.push_back(op); });
    if (allocations.empty())
      return;
    BufferViewFlowAnalysis views(getOperation());
    for (memref::AllocOp allocation : allocations) {
      Operation *terminator = allocation->getBlock()->getTerminator();
      BufferViewFlowAnalysis::ValueSetT aliases = views.resolve(allocation);
      if (llvm::any_of(terminator->getOperands(), [&](Value operand) { return aliases.contains(operand); })) {
        emitError(allocation.getLoc(),
                  "this buffer leaves the block that allocates it, so that nothing would free it; write "
                  "into a buffer of the surrounding block instead");
        return signalPassFailure();
      }
      if (llvm::any_of(aliases,
                       [](Value alias) { return llvm::any_of(alias.getUsers(), llvm::IsaPred<memref::DeallocOp>); }))
        continue;
      OpBuilder builder(terminator);
      memref::DeallocOp::create(builder, allocation.getLoc(), allocation);
    }
  }
};

} // namespace
