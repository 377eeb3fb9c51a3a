//===- FoldDynamicBroadcast.cpp - Drop idle run-time broadcasts -----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_FOLDDYNAMICBROADCAST
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

Value stripCasts(Value value) {
  while (auto cast = value.getDefiningOp<tensor::CastOp>())
    value = cast.getSource();
  return value;
}

/// Whether `value` compares a size (of a tensor's dimension, or the larger one of two) with 1.
bool isTestForUnitDimension(Value value) {
  auto compare = value.getDefiningOp<arith::CmpIOp>();
  return compare && compare.getPredicate() == arith::CmpIPredicate::eq && matchPattern(compare.getRhs(), m_One()) &&
         compare.getLhs().getType().isIndex();
}

/// A generic that copies `source` and maps at least one of its dimensions to index 0.
bool isBroadcastOf(Value value, Value source) {
  auto generic = stripCasts(value).getDefiningOp<linalg::GenericOp>();
  if (!generic || generic.getNumDpsInputs() != 1 || stripCasts(generic.getDpsInputOperand(0)->get()) != source ||
      !llvm::hasSingleElement(*generic.getBody()))
    return false;
  AffineMap map = generic.getMatchingIndexingMap(generic.getDpsInputOperand(0));
  return generic.getBody()->getTerminator()->getOperand(0) == generic.getBody()->getArgument(0) &&
         llvm::any_of(map.getResults(), llvm::IsaPred<AffineConstantExpr>);
}

struct FoldBroadcastGuard : OpRewritePattern<scf::IfOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(scf::IfOp op, PatternRewriter &rewriter) const override {
    if (op.getNumResults() != 1 || op.getElseRegion().empty() || !isTestForUnitDimension(op.getCondition()))
      return rewriter.notifyMatchFailure(op, "not a test of a dimension for 1");
    Value kept = op.elseYield().getOperand(0);
    Value source = stripCasts(kept);
    if (!isBroadcastOf(op.thenYield().getOperand(0), source))
      return rewriter.notifyMatchFailure(op, "not a guarded broadcast");
    if (op.getElseRegion().isAncestor(source.getParentRegion()))
      return rewriter.notifyMatchFailure(op, "the unbroadcast value is made inside the guard");
    if (source.getType() == op.getResult(0).getType())
      rewriter.replaceOp(op, source);
    else
      rewriter.replaceOpWithNewOp<tensor::CastOp>(op, op.getResult(0).getType(), source);
    return success();
  }
};

struct FoldDynamicBroadcast : buddy::impl::FoldDynamicBroadcastBase<FoldDynamicBroadcast> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<FoldBroadcastGuard>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
