//===- ElementwiseFusion.cpp - Fuse chains of elementwise ops -------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_ELEMENTWISEFUSION
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// A body that may be computed again rather than stored: a handful of arithmetic instructions, no division, no
/// function of libm, no memory access.
bool isCheap(linalg::LinalgOp op) {
  constexpr int64_t mostOps = 4;
  int64_t count = 0;
  for (Operation &nested : op.getBlock()->without_terminator()) {
    if (isa<linalg::IndexOp, arith::ConstantOp>(nested))
      continue;
    if (!isa<arith::ArithDialect>(nested.getDialect()) ||
        isa<arith::DivFOp, arith::RemFOp, arith::DivSIOp, arith::DivUIOp, arith::RemSIOp, arith::RemUIOp>(nested))
      return false;
    ++count;
  }
  return count <= mostOps;
}

/// Whether fusing the producer of `operand` into its user saves a buffer without repeating work that matters.
bool paysToFuse(OpOperand *operand) {
  auto producer = operand->get().getDefiningOp<linalg::LinalgOp>();
  auto consumer = dyn_cast<linalg::LinalgOp>(operand->getOwner());
  if (!producer || !consumer || !producer->hasOneUse())
    return false;
  AffineMap map = consumer.getMatchingIndexingMap(operand);
  SmallVector<unsigned> repeating; // the consumer's loops that read the same element again
  SmallVector<int64_t> extents = consumer.getStaticLoopRanges();
  for (unsigned loop = 0; loop < consumer.getNumLoops(); ++loop)
    if (!map.isFunctionOfDim(loop) && extents[loop] != 1)
      repeating.push_back(loop);
  if (repeating.empty())
    return true;
  if (linalg::isaContractionOpInterface(consumer))
    return false;
  // A loop nest hoists what its innermost loop does not change.
  if (repeating.size() == 1 && repeating.front() == consumer.getNumLoops() - 1)
    return true;
  return isCheap(producer);
}

/// Named elementwise ops, reductions, broadcasts and transpositions as linalg.generic, the one form that fuses. Fills
/// and contractions keep their names.
struct Generalize : OpInterfaceRewritePattern<linalg::LinalgOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;

  LogicalResult matchAndRewrite(linalg::LinalgOp op, PatternRewriter &rewriter) const override {
    if (isa<linalg::GenericOp, linalg::FillOp>(op) || linalg::isaContractionOpInterface(op) ||
        linalg::isaConvolutionOpInterface(op))
      return rewriter.notifyMatchFailure(op, "keeps its name");
    return linalg::generalizeNamedOp(rewriter, op);
  }
};

/// Upstream's patterns replace an output that is not read by a fresh tensor. Where the output is an argument, the
/// function means to write there: says so in an op that the patterns leave alone.
void keepDestinations(func::FuncOp function) {
  function.walk([](linalg::LinalgOp op) {
    for (OpOperand &init : op.getDpsInitsMutable()) {
      if (!isa<BlockArgument>(init.get()) || !isa<RankedTensorType>(init.get().getType()))
        continue;
      OpBuilder b(op);
      b.setInsertionPointAfter(op);
      Value result = op.getTiedOpResult(&init);
      auto kept = bufferization::MaterializeInDestinationOp::create(b, op.getLoc(), result, init.get());
      result.replaceAllUsesExcept(kept.getResult(), kept);
    }
  });
}

struct ElementwiseFusion : buddy::impl::ElementwiseFusionBase<ElementwiseFusion> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    keepDestinations(getOperation());
    RewritePatternSet patterns(context);
    patterns.add<Generalize>(context);
    linalg::populateElementwiseOpsFusionPatterns(patterns, paysToFuse);
    linalg::populateConstantFoldLinalgOperations(patterns, [](OpOperand *) { return false; });
    populateMathAlgebraicSimplificationPatterns(patterns); // powf(x, 2) is x * x
    linalg::GenericOp::getCanonicalizationPatterns(patterns, context);
    linalg::FillOp::getCanonicalizationPatterns(patterns, context);
    tensor::ExpandShapeOp::getCanonicalizationPatterns(patterns, context);
    tensor::CollapseShapeOp::getCanonicalizationPatterns(patterns, context);
    context->getLoadedDialect<linalg::LinalgDialect>()->getCanonicalizationPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
