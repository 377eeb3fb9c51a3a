//===- ExpandHalfConversions.cpp - f16 from and to f32 by integers --------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "Target.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_EXPANDHALFCONVERSIONS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// `type`, or the element type of its vectors, as another one.
Type withElements(Type type, Type elements) {
  auto vector = dyn_cast<VectorType>(type);
  return vector ? Type(vector.clone(elements)) : elements;
}

/// Arithmetic on the bits of numbers that have the shape of `like`.
class Bits {
public:
  Bits(OpBuilder &builder, Location location, Type like)
      : b(location, builder), narrow(withElements(like, b.getI16Type())), wide(withElements(like, b.getI32Type())),
        real(withElements(like, b.getF32Type())) {}

  ImplicitLocOpBuilder b;
  Type narrow, wide, real;

  Value number(uint32_t value) {
    auto attribute = b.getI32IntegerAttr(static_cast<int32_t>(value));
    if (auto vector = dyn_cast<ShapedType>(wide))
      return arith::ConstantOp::create(b, DenseElementsAttr::get(vector, attribute.getValue()));
    return arith::ConstantOp::create(b, attribute);
  }
  Value bitsOf(Value value) { return arith::BitcastOp::create(b, wide, value); }
  Value realOf(Value bits) { return arith::BitcastOp::create(b, real, bits); }
  Value masked(Value bits, uint32_t mask) { return arith::AndIOp::create(b, bits, number(mask)); }
  Value plus(Value bits, Value other) { return arith::AddIOp::create(b, bits, other); }
  Value plus(Value bits, uint32_t value) { return plus(bits, number(value)); }
  Value joined(Value bits, Value other) { return arith::OrIOp::create(b, bits, other); }
  Value left(Value bits, uint32_t places) { return arith::ShLIOp::create(b, bits, number(places)); }
  Value right(Value bits, uint32_t places) { return arith::ShRUIOp::create(b, bits, number(places)); }
  Value isBelow(Value bits, uint32_t limit) {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, bits, number(limit));
  }
  Value select(Value condition, Value then, Value otherwise) {
    return arith::SelectOp::create(b, condition, then, otherwise);
  }
};

/// Fraction and exponent move to their places, and the exponent's bias grows by 127 - 15 = 112. Exponents of 31 become
/// 255. A subnormal gets the exponent of 2^-14, which a subtraction of 2^-14 then takes off, exactly.
struct ExpandExtension : OpRewritePattern<arith::ExtFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::ExtFOp op, PatternRewriter &rewriter) const override {
    if (!getElementTypeOrSelf(op.getIn().getType()).isF16())
      return rewriter.notifyMatchFailure(op, "not of f16");
    Bits bits(rewriter, op.getLoc(), op.getIn().getType());
    Value half = arith::BitcastOp::create(bits.b, bits.narrow, op.getIn());
    half = arith::ExtUIOp::create(bits.b, bits.wide, half);
    Value sign = bits.left(bits.masked(half, 0x8000), 16);
    Value magnitude = bits.left(bits.masked(half, 0x7fff), 13);
    constexpr uint32_t bias = 112u << 23, smallest = 113u << 23; // 2^-14
    Value shifted = bits.realOf(bits.plus(magnitude, smallest));
    Value subnormal = bits.bitsOf(arith::SubFOp::create(bits.b, shifted, bits.realOf(bits.number(smallest))));
    Value isFinite = bits.isBelow(magnitude, 31u << 23);
    Value normal = bits.plus(magnitude, bits.select(isFinite, bits.number(bias), bits.number(2 * bias)));
    Value result = bits.select(bits.isBelow(magnitude, 1u << 23), subnormal, normal);
    result = bits.realOf(bits.joined(result, sign));
    if (result.getType() != op.getType()) // f64
      result = arith::ExtFOp::create(bits.b, op.getType(), result);
    rewriter.replaceOp(op, result);
    return success();
  }
};

/// Rounds to nearest, ties to even. The fraction's last 13 bits are rounded off by an addition of one less than half of
/// what they count, and of the last bit that stays; a carry goes into the exponent, at the end to infinity. Below 2^-14
/// the sum with 0.5 has its last place where that of the result is.
struct ExpandTruncation : OpRewritePattern<arith::TruncFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::TruncFOp op, PatternRewriter &rewriter) const override {
    if (!getElementTypeOrSelf(op.getType()).isF16() || !getElementTypeOrSelf(op.getIn().getType()).isF32())
      return rewriter.notifyMatchFailure(op, "not from f32 to f16");
    if (op.getRoundingmode() && *op.getRoundingmode() != arith::RoundingMode::to_nearest_even)
      return rewriter.notifyMatchFailure(op, "another rounding");
    Bits bits(rewriter, op.getLoc(), op.getType());
    Value value = bits.bitsOf(op.getIn());
    Value magnitude = bits.masked(value, 0x7fffffff);
    Value sign = bits.right(bits.masked(value, 0x80000000), 16);

    Value odd = bits.masked(bits.right(magnitude, 13), 1);
    constexpr uint32_t bias = 112u << 23, half = 126u << 23; // 0.5
    Value normal = bits.right(bits.plus(bits.plus(magnitude, 0xfff - bias), odd), 13);
    Value sum = arith::AddFOp::create(bits.b, bits.realOf(magnitude), bits.realOf(bits.number(half)));
    Value subnormal = bits.plus(bits.bitsOf(sum), 0u - half);
    Value isNumber = bits.isBelow(magnitude, (255u << 23) + 1);
    Value large = bits.select(isNumber, bits.number(0x7c00), bits.number(0x7e00));
    Value result = bits.select(bits.isBelow(magnitude, 113u << 23), subnormal, normal);
    result = bits.select(bits.isBelow(magnitude, 143u << 23), result, large); // 2^16
    result = arith::TruncIOp::create(bits.b, bits.narrow, bits.joined(result, sign));
    rewriter.replaceOpWithNewOp<arith::BitcastOp>(op, op.getType(), result);
    return success();
  }
};

struct ExpandHalfConversions : buddy::impl::ExpandHalfConversionsBase<ExpandHalfConversions> {
  void runOnOperation() override {
    FailureOr<buddy::Target> target = buddy::Target::get(getOperation());
    if (failed(target))
      return signalPassFailure();
    if (target->convertsHalf)
      return;
    RewritePatternSet patterns(&getContext());
    patterns.add<ExpandExtension, ExpandTruncation>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
