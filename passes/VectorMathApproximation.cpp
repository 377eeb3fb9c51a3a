//===- VectorMathApproximation.cpp - Polynomials for functions of vectors -===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_VECTORMATHAPPROXIMATION
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n * ln 2 in two parts; the polynomial is that of Cephes' expf.
/// 2^n is applied in two halves, so that subnormal results and results next to the largest number come out right.
struct ExpandExp : OpRewritePattern<math::ExpOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(math::ExpOp op, PatternRewriter &rewriter) const override {
    auto type = dyn_cast<VectorType>(op.getType());
    if (!type || !type.getElementType().isF32())
      return rewriter.notifyMatchFailure(op, "not a vector of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto integers = VectorType::get(type.getShape(), b.getI32Type(), type.getScalableDims());
    auto real = [&](float value) -> Value { return arith::ConstantOp::create(b, DenseElementsAttr::get(type, value)); };
    auto integer = [&](int32_t value) -> Value {
      return arith::ConstantOp::create(b, DenseElementsAttr::get(integers, value));
    };
    auto fma = [&](Value x, Value y, Value z) -> Value { return vector::FMAOp::create(b, x, y, z); };

    // Outside of these bounds the result is 0 or infinity. A NaN fails both comparisons and is put back at the end.
    Value x = op.getOperand();
    Value low = real(-104.0f), high = real(89.0f);
    Value aboveLow = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, x, low);
    Value clamped = arith::SelectOp::create(b, aboveLow, x, low);
    Value belowHigh = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, clamped, high);
    clamped = arith::SelectOp::create(b, belowHigh, clamped, high);

    Value n = math::RoundEvenOp::create(b, arith::MulFOp::create(b, clamped, real(1.44269504088896341f)));
    Value r = fma(n, real(-0.693359375f), clamped);
    r = fma(n, real(2.12194440e-4f), r);
    Value poly = real(1.9875691500e-4f);
    for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
      poly = fma(poly, r, real(coefficient));
    poly = fma(poly, arith::MulFOp::create(b, r, r), r);
    poly = arith::AddFOp::create(b, poly, real(1.0f));

    Value exponent = arith::FPToSIOp::create(b, integers, n);
    Value half = arith::ShRSIOp::create(b, exponent, integer(1));
    Value rest = arith::SubIOp::create(b, exponent, half);
    auto powerOfTwo = [&](Value power) -> Value {
      Value biased = arith::AddIOp::create(b, power, integer(127));
      return arith::BitcastOp::create(b, type, arith::ShLIOp::create(b, biased, integer(23)));
    };
    Value result = arith::MulFOp::create(b, poly, powerOfTwo(half));
    result = arith::MulFOp::create(b, result, powerOfTwo(rest));
    Value isNan = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, x, x);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, isNan, x, result);
    return success();
  }
};

struct VectorMathApproximation : buddy::impl::VectorMathApproximationBase<VectorMathApproximation> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<ExpandExp>(&getContext());
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return name == math::TanhOp::getOperationName() || name == math::LogOp::getOperationName() ||
             name == math::ErfOp::getOperationName();
    });
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
