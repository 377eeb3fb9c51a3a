//===- DropEntryPointResults.cpp - Entry points return nothing ------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_DROPENTRYPOINTRESULTS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// The argument of the function that `value` is the same buffer as, seen through casts, reshapes and loops that carry
/// it unchanged; null if there is none.
BlockArgument findEquivalentArgument(Value value) {
  while (true) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      Operation *parent = argument.getOwner()->getParentOp();
      if (isa<func::FuncOp>(parent))
        return argument;
      auto loop = dyn_cast<scf::ForOp>(parent);
      if (!loop || argument == loop.getInductionVar())
        return {};
      value = loop.getTiedLoopInit(argument)->get();
      continue;
    }
    Operation *op = value.getDefiningOp();
    if (isa<memref::CastOp, memref::ExpandShapeOp, memref::CollapseShapeOp>(op)) {
      value = op->getOperand(0);
      continue;
    }
    auto loop = dyn_cast<scf::ForOp>(op);
    if (!loop)
      return {};
    // A loop's result is its initial value if every iteration hands it on.
    auto result = cast<OpResult>(value);
    BlockArgument carried = loop.getTiedLoopRegionIterArg(result);
    if (findEquivalentArgument(loop.getTiedLoopYieldedValue(carried)->get()) != findEquivalentArgument(carried))
      return {};
    value = loop.getTiedLoopInit(result)->get();
  }
}

LogicalResult dropResults(func::FuncOp function) {
  for (func::ReturnOp returned : function.getOps<func::ReturnOp>()) {
    BitVector dropped(returned.getNumOperands());
    for (OpOperand &operand : returned->getOpOperands()) {
      if (!isa<BaseMemRefType>(operand.get().getType()))
        continue;
      BlockArgument argument = findEquivalentArgument(operand.get());
      if (!argument || argument.getType() != operand.get().getType())
        return emitError(returned.getLoc())
               << "result " << operand.getOperandNumber() << " of public function '" << function.getName()
               << "' is not one of its buffer arguments; write it into an argument with "
                  "bufferization.materialize_in_destination";
      dropped.set(operand.getOperandNumber());
    }
    if (dropped.none())
      continue;
    returned->eraseOperands(dropped);
    if (failed(function.eraseResults(dropped)))
      return failure();
  }
  return success();
}

struct DropEntryPointResults : buddy::impl::DropEntryPointResultsBase<DropEntryPointResults> {
  void runOnOperation() override {
    for (auto function : getOperation().getOps<func::FuncOp>()) {
      if (function.isPrivate() || function.isExternal() || !llvm::hasSingleElement(function.getBody()))
        continue;
      if (llvm::none_of(function.getResultTypes(), llvm::IsaPred<BaseMemRefType>))
        continue;
      if (!SymbolTable::symbolKnownUseEmpty(function, getOperation())) {
        emitError(function.getLoc()) << "public function '" << function.getName()
                                     << "' returns buffers and is called in its own module; make it private";
        return signalPassFailure();
      }
      if (failed(dropResults(function)))
        return signalPassFailure();
    }
  }
};

} // namespace
