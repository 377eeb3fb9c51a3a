//===- QuantizedContraction.cpp - Contractions with quantised weights -----===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "QuantizedContraction.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Matchers.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// Evaluates an expression in the body of a contraction whose only variables are a byte and the loop over the halves of
/// bytes. So the way in which a nibble is taken out does not matter.
class ByteExpression {
public:
  ByteExpression(BlockArgument byte, unsigned halfLoop) : byte(byte), halfLoop(halfLoop) {}

  /// The expression's value, if it is a whole number.
  std::optional<int64_t> evaluate(Value value, int64_t byteValue, int64_t half) {
    this->byteValue = byteValue;
    this->half = half;
    std::optional<APInt> result = integer(value);
    return result ? std::optional(result->getSExtValue()) : std::nullopt;
  }

private:
  BlockArgument byte;
  unsigned halfLoop;
  int64_t byteValue = 0, half = 0;

  static unsigned widthOf(Value value) {
    return value.getType().isIndex() || isa<FloatType>(value.getType()) ? 64 : value.getType().getIntOrFloatBitWidth();
  }

  /// Floats that hold whole numbers are computed as integers of 64 bits.
  std::optional<APInt> integer(Value value) {
    if (value == byte)
      return APInt(8, byteValue, /*isSigned=*/true);
    Operation *op = value.getDefiningOp();
    if (!op || !(value.getType().isIntOrIndexOrFloat()))
      return std::nullopt;
    unsigned width = widthOf(value);
    if (auto constant = dyn_cast<arith::ConstantOp>(op))
      return ofConstant(constant.getValue(), width);
    if (auto index = dyn_cast<linalg::IndexOp>(op))
      return index.getDim() == halfLoop ? std::optional(APInt(64, half)) : std::nullopt;
    SmallVector<APInt, 2> in;
    for (Value operand : op->getOperands()) {
      std::optional<APInt> known = integer(operand);
      if (!known)
        return std::nullopt;
      in.push_back(*known);
    }
    using Result = std::optional<APInt>;
    return llvm::TypeSwitch<Operation *, Result>(op)
        .Case<arith::ExtUIOp, arith::UIToFPOp, arith::IndexCastUIOp>(
            [&](auto) -> Result { return in[0].zextOrTrunc(width); })
        .Case<arith::ExtSIOp, arith::SIToFPOp, arith::TruncIOp, arith::IndexCastOp>(
            [&](auto) -> Result { return in[0].sextOrTrunc(width); })
        .Case<arith::AddIOp, arith::AddFOp>([&](auto) -> Result { return in[0] + in[1]; })
        .Case<arith::SubIOp, arith::SubFOp>([&](auto) -> Result { return in[0] - in[1]; })
        .Case<arith::MulIOp>([&](auto) -> Result { return in[0] * in[1]; })
        .Case<arith::AndIOp>([&](auto) -> Result { return in[0] & in[1]; })
        .Case<arith::OrIOp>([&](auto) -> Result { return in[0] | in[1]; })
        .Case<arith::XOrIOp>([&](auto) -> Result { return in[0] ^ in[1]; })
        .Case<arith::ShLIOp>([&](auto) -> Result { return in[0].shl(in[1]); })
        .Case<arith::ShRUIOp>([&](auto) -> Result { return in[0].lshr(in[1]); })
        .Case<arith::ShRSIOp>([&](auto) -> Result { return in[0].ashr(in[1]); })
        .Default([](auto) -> Result { return std::nullopt; });
  }

  static std::optional<APInt> ofConstant(Attribute value, unsigned width) {
    if (auto number = dyn_cast<IntegerAttr>(value))
      return number.getValue().sextOrTrunc(width);
    auto number = dyn_cast<FloatAttr>(value);
    APSInt whole(width, /*isUnsigned=*/false);
    bool exact = false;
    if (!number || number.getValue().convertToInteger(whole, APFloat::rmTowardZero, &exact) != APFloat::opOK || !exact)
      return std::nullopt;
    return whole;
  }
};

/// The input that `value` is, or is the wider form of.
BlockArgument inputOf(Value value) {
  if (auto widened = value.getDefiningOp<arith::ExtFOp>())
    value = widened.getIn();
  return dyn_cast<BlockArgument>(value);
}

/// The operands of a product or sum in both orders.
template <typename Op> SmallVector<std::pair<Value, Value>, 2> operandPairs(Value value) {
  auto op = value.getDefiningOp<Op>();
  if (!op)
    return {};
  return {{op.getLhs(), op.getRhs()}, {op.getRhs(), op.getLhs()}};
}

/// Loops of the op, in the order in which fold-quantized-weights writes them.
struct Loops {
  unsigned m = 0, p = 1, j = 2, g = 3, half, quad, place;

  explicit Loops(unsigned count) : half(4), quad(count - 2), place(count - 1) {}
};

class Matcher {
public:
  explicit Matcher(linalg::GenericOp op) : op(op), loops(op.getNumLoops()) {}

  FailureOr<QuantizedContraction> match() {
    if (!op.hasPureBufferSemantics() || op.getNumDpsInits() != 1 || (op.getNumLoops() != 6 && op.getNumLoops() != 7) ||
        op.getNumParallelLoops() != 3)
      return failure();
    result.nibbles = op.getNumLoops() == 7;
    result.c = op.getDpsInits()[0];
    Value out = op.getRegionOutputArgs()[0];
    for (auto [sum, product] : operandPairs<arith::AddFOp>(op.getBody()->getTerminator()->getOperand(0)))
      if (sum == out)
        for (auto [a, w] : operandPairs<arith::MulFOp>(product))
          if (matchWeight(w) && matchActivation(a) && hasLayouts())
            return result;
    return failure();
  }

private:
  linalg::GenericOp op;
  Loops loops;
  QuantizedContraction result;

  /// The buffer of an input that is indexed by these loops.
  Value buffer(BlockArgument argument, ArrayRef<unsigned> indices) {
    if (!argument || argument.getOwner() != op.getBody() || argument.getArgNumber() >= op.getNumDpsInputs())
      return {};
    OpOperand *operand = op.getDpsInputOperand(argument.getArgNumber());
    AffineMap map = op.getMatchingIndexingMap(operand);
    if (!map.isProjectedPermutation() || map.getNumResults() != indices.size())
      return {};
    for (auto [number, loop] : llvm::enumerate(indices))
      if (map.getDimPosition(number) != loop)
        return {};
    return isa<MemRefType>(operand->get().getType()) ? operand->get() : Value();
  }

  static bool isFloat(Value buffer, unsigned bits) {
    auto element = dyn_cast<FloatType>(cast<MemRefType>(buffer.getType()).getElementType());
    return element && element.getWidth() == bits && !isa<BFloat16Type>(element);
  }

  Value halves(Value value) {
    Value found = buffer(inputOf(value), {loops.p, loops.g, loops.j});
    return found && isFloat(found, 16) ? found : Value();
  }

  bool matchWeight(Value value) {
    result.minimum = {};
    for (auto [sum, minimum] : operandPairs<arith::AddFOp>(value))
      if (Value found = halves(minimum); found && matchScaled(sum)) {
        result.minimum = found;
        return true;
      }
    return matchScaled(value);
  }

  bool matchScaled(Value value) {
    for (auto [integer, scale] : operandPairs<arith::MulFOp>(value))
      if (Value found = halves(scale); found && matchInteger(integer)) {
        result.scale = found;
        return true;
      }
    return false;
  }

  /// Whether `value` is a byte of the weights, or a half of one, less a constant.
  bool matchInteger(Value value) {
    for (BlockArgument argument : op.getRegionInputArgs()) {
      Value found = buffer(argument, {loops.p, loops.g, loops.quad, loops.j, loops.place});
      if (!found || !argument.getType().isInteger(8))
        continue;
      ByteExpression expression(argument, result.nibbles ? loops.half : ~0u);
      std::optional<int64_t> atZero = expression.evaluate(value, 0, 0);
      if (!atZero || *atZero < -128 || *atZero > 127)
        continue;
      bool holds = true;
      for (int64_t byte = -128; holds && byte < 128; ++byte)
        for (int64_t half = 0; half < (result.nibbles ? 2 : 1); ++half) {
          int64_t integer = result.nibbles ? ((byte & 255) >> (4 * half)) & 15 : byte;
          holds &= expression.evaluate(value, byte, half) == integer + *atZero;
        }
      if (!holds)
        continue;
      result.w = found;
      result.zero = -*atZero;
      return true;
    }
    return false;
  }

  bool matchActivation(Value value) {
    SmallVector<unsigned> indices = {loops.m, loops.g, loops.quad, loops.place};
    if (result.nibbles)
      indices.insert(indices.begin() + 2, loops.half);
    result.aScale = {};
    if (Value found = buffer(dyn_cast<BlockArgument>(value), indices)) {
      result.a = found;
      return isFloat(found, 32);
    }
    for (auto [integer, scale] : operandPairs<arith::MulFOp>(value)) {
      auto converted = integer.getDefiningOp<arith::SIToFPOp>();
      Value a = converted ? buffer(dyn_cast<BlockArgument>(converted.getIn()), indices) : Value();
      Value aScale = buffer(dyn_cast<BlockArgument>(scale), {loops.m, loops.g});
      if (!a || !aScale || !isFloat(aScale, 32))
        continue;
      Type element = cast<MemRefType>(a.getType()).getElementType();
      if (!element.isInteger(8) && !element.isInteger(16))
        continue;
      result.a = a;
      result.aScale = aScale;
      return true;
    }
    return false;
  }

  bool hasLayouts() {
    auto w = cast<MemRefType>(result.w.getType()), c = cast<MemRefType>(result.c.getType());
    if (!w.hasStaticShape() || w.getDimSize(4) != 4 || !isFloat(result.c, 32))
      return false;
    SmallVector<int64_t> strides;
    int64_t offset;
    if (failed(w.getStridesAndOffset(strides, offset)) || strides[4] != 1 || strides[3] != 4 ||
        strides[2] != 4 * w.getDimSize(3))
      return false;
    for (Value halves : {result.scale, result.minimum})
      if (halves && !cast<MemRefType>(halves.getType()).isLastDimUnitStride())
        return false;
    AffineMap out = op.getMatchingIndexingMap(op.getDpsInitOperand(0));
    if (!c.isLastDimUnitStride() || out.getNumResults() != 3 || out.getDimPosition(0) != loops.m ||
        out.getDimPosition(1) != loops.p || out.getDimPosition(2) != loops.j)
      return false;
    if (!result.hasIntegerActivations())
      return true;
    // No sum of a group's products may leave 32 bits; activations are read as whole quads.
    int64_t largestWeight = (result.nibbles ? 15 : 128) + std::abs(result.zero);
    int64_t largestActivation = result.hasWideActivations() ? 32768 : 128;
    int64_t longestGroup = ((int64_t(1) << 31) - 1) / (largestWeight * largestActivation);
    return cast<MemRefType>(result.a.getType()).getLayout().isIdentity() &&
           result.quads() * result.halves() * 4 <= longestGroup;
  }
};

} // namespace

FailureOr<QuantizedContraction> mlir::buddy::matchQuantizedContraction(linalg::GenericOp op) {
  return Matcher(op).match();
}
