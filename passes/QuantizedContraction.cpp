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

/// Evaluates an expression in the body of a contraction, given the values that it begins with and the numbers of loops'
/// iterations. So the way in which an integer is taken out of its bytes does not matter.
class Expression {
public:
  void set(Value value, int64_t number) {
    values[value] = APInt(widthOf(value), number, /*isSigned=*/true, /*implicitTrunc=*/true);
  }
  void setLoop(unsigned loop, int64_t iteration) { loops[loop] = iteration; }

  /// The expression's value, if it is a whole number.
  std::optional<int64_t> evaluate(Value value) const {
    std::optional<APInt> result = integer(value);
    return result ? std::optional(result->getSExtValue()) : std::nullopt;
  }

private:
  llvm::SmallDenseMap<Value, APInt> values;
  llvm::SmallDenseMap<unsigned, int64_t> loops;

  static unsigned widthOf(Value value) {
    return value.getType().isIndex() || isa<FloatType>(value.getType()) ? 64 : value.getType().getIntOrFloatBitWidth();
  }

  /// Floats that hold whole numbers are computed as integers of 64 bits.
  std::optional<APInt> integer(Value value) const {
    if (auto known = values.find(value); known != values.end())
      return known->second;
    Operation *op = value.getDefiningOp();
    if (!op || !(value.getType().isIntOrIndexOrFloat()))
      return std::nullopt;
    unsigned width = widthOf(value);
    if (auto constant = dyn_cast<arith::ConstantOp>(op))
      return ofConstant(constant.getValue(), width);
    if (auto index = dyn_cast<linalg::IndexOp>(op)) {
      auto known = loops.find(index.getDim());
      return known == loops.end() ? std::nullopt : std::optional(APInt(64, known->second));
    }
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
  unsigned m = 0, p = 1, j = 2, block = 3, half, quad, place;
  SmallVector<unsigned, 2> group; ///< the block, and the group in it if it has several
  bool hasHalves;

  /// 6 loops: bytes; 7: halves of bytes; 8: halves in blocks of several groups.
  explicit Loops(unsigned count) : half(count - 3), quad(count - 2), place(count - 1), hasHalves(count > 6) {
    group.push_back(block);
    if (count == 8)
      group.push_back(block + 1);
  }
};

class Matcher {
public:
  explicit Matcher(linalg::GenericOp op) : op(op), loops(op.getNumLoops()) {}

  FailureOr<QuantizedContraction> match() {
    if (!op.hasPureBufferSemantics() || op.getNumDpsInits() != 1 || op.getNumLoops() < 6 || op.getNumLoops() > 8 ||
        op.getNumParallelLoops() != 3)
      return failure();
    result.nibbles = loops.hasHalves;
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

  SmallVector<unsigned> overGroups(ArrayRef<unsigned> first, ArrayRef<unsigned> last) {
    return llvm::to_vector(llvm::concat<const unsigned>(first, ArrayRef<unsigned>(loops.group), last));
  }

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

  /// What scales or minima are: a half of the block, and the group's factor if blocks have several groups.
  struct Product {
    Value half, factor;
    bool isSigned = false;
  };

  Product matchProduct(Value value) {
    auto half = [&](Value value) {
      Value found = buffer(inputOf(value), {loops.p, loops.block, loops.j});
      return found && isFloat(found, 16) ? found : Value();
    };
    if (loops.group.size() == 1)
      return {half(value), {}};
    for (auto [wide, number] : operandPairs<arith::MulFOp>(value)) {
      Operation *conversion = number.getDefiningOp();
      if (!isa_and_present<arith::SIToFPOp, arith::UIToFPOp>(conversion) ||
          !conversion->getOperand(0).getType().isInteger(8))
        continue;
      auto argument = dyn_cast<BlockArgument>(conversion->getOperand(0));
      Value found = half(wide), factor = buffer(argument, overGroups({loops.p}, {loops.j}));
      if (found && factor)
        return {found, factor, isa<arith::SIToFPOp>(conversion)};
    }
    return {};
  }

  bool matchWeight(Value value) {
    result.minimum = result.minimumFactor = {};
    SmallVector<std::pair<Value, Value>, 2> sums = operandPairs<arith::AddFOp>(value);
    auto difference = value.getDefiningOp<arith::SubFOp>();
    if (difference)
      sums.push_back({difference.getLhs(), difference.getRhs()});
    for (auto [sum, minimum] : sums)
      if (Product found = matchProduct(minimum); found.half && !found.isSigned && matchScaled(sum)) {
        result.minimum = found.half;
        result.minimumFactor = found.factor;
        result.subtractsMinimum = difference != nullptr;
        return true;
      }
    return matchScaled(value);
  }

  bool matchScaled(Value value) {
    for (auto [integer, scale] : operandPairs<arith::MulFOp>(value))
      if (Product found = matchProduct(scale); found.half && matchInteger(integer)) {
        result.scale = found.half;
        result.factor = found.factor;
        result.hasSignedFactors = found.isSigned;
        return true;
      }
    return false;
  }

  /// The inputs of bytes that are indexed by these loops.
  SmallVector<BlockArgument> byteInputs(ArrayRef<unsigned> indices) {
    return llvm::filter_to_vector(op.getRegionInputArgs(), [&](BlockArgument argument) {
      return argument.getType().isInteger(8) && buffer(argument, indices);
    });
  }

  /// Whether `value` is the integer of a weight, less a constant.
  bool matchInteger(Value value) {
    result.high = {};
    for (BlockArgument low : byteInputs(overGroups({loops.p}, {loops.quad, loops.j, loops.place}))) {
      result.w = buffer(low, overGroups({loops.p}, {loops.quad, loops.j, loops.place}));
      result.bits = loops.hasHalves ? 4 : 8;
      if (isLowPart(value, low, /*mayShift=*/true))
        return true;
      if (!loops.hasHalves)
        continue;
      for (BlockArgument high : byteInputs(overGroups({loops.p}, {loops.j, loops.place})))
        if (matchJoined(value, low, high)) {
          result.high = buffer(high, overGroups({loops.p}, {loops.j, loops.place}));
          return true;
        }
    }
    return false;
  }

  /// Whether `value` is the byte `low`, or one half of it; less a constant, which becomes the result's zero.
  bool isLowPart(Value value, BlockArgument low, bool mayShift) {
    std::optional<int64_t> shift;
    for (int64_t byte = 0; byte < 256; ++byte)
      for (int64_t half = 0; half < (loops.hasHalves ? 2 : 1); ++half) {
        Expression expression;
        expression.set(low, byte);
        if (loops.hasHalves)
          expression.setLoop(loops.half, half);
        std::optional<int64_t> number = expression.evaluate(value);
        if (!number)
          return false;
        int64_t integer = loops.hasHalves ? (byte >> (4 * half)) & 15 : static_cast<int8_t>(byte);
        shift = shift.value_or(*number - integer);
        if (*number - integer != *shift)
          return false;
      }
    return setZero(*shift, mayShift);
  }

  bool setZero(int64_t shift, bool mayShift) {
    result.zero = -shift;
    return shift == 0 || (mayShift && shift >= -128 && shift <= 127);
  }

  /// Whether `value` is a half of `low` joined with bits of `high`, less a constant.
  bool matchJoined(Value value, BlockArgument low, BlockArgument high) {
    int64_t quads = result.quads(), width = 8 / (2 * quads);
    if (width * 2 * quads != 8 || width > 2)
      return false;
    for (Operation &join : op.getBody()->without_terminator()) {
      if (!isa<arith::OrIOp, arith::AddIOp>(join))
        continue;
      Value first = join.getOperand(0), second = join.getOperand(1);
      bool isJoin = (isLowPart(first, low, false) && isHighPart(second, high, width)) ||
                    (isLowPart(second, low, false) && isHighPart(first, high, width));
      if (isJoin && isShifted(value, join.getResult(0), 4 + width))
        return true;
    }
    return false;
  }

  /// Whether `value` is `width` bits of `high` for the half and quad, above 4 bits of zero.
  bool isHighPart(Value value, BlockArgument high, int64_t width) {
    for (int64_t byte = 0; byte < 256; ++byte)
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t quad = 0; quad < result.quads(); ++quad) {
          Expression expression;
          expression.set(high, byte);
          expression.setLoop(loops.half, half);
          expression.setLoop(loops.quad, quad);
          int64_t bits = (byte >> (width * (half * result.quads() + quad))) & ((1 << width) - 1);
          if (expression.evaluate(value) != bits << 4)
            return false;
        }
    return true;
  }

  /// Whether `value` is `integer`, which has so many bits, less a constant.
  bool isShifted(Value value, Value integer, int64_t bits) {
    std::optional<int64_t> shift;
    for (int64_t number = 0; number < (int64_t(1) << bits); ++number) {
      Expression expression;
      expression.set(integer, number);
      std::optional<int64_t> found = expression.evaluate(value);
      if (!found)
        return false;
      shift = shift.value_or(*found - number);
      if (*found - number != *shift)
        return false;
    }
    result.bits = bits;
    return setZero(*shift, /*mayShift=*/true);
  }

  bool matchActivation(Value value) {
    SmallVector<unsigned> indices = overGroups({loops.m}, {loops.half, loops.quad, loops.place});
    if (!loops.hasHalves)
      indices.erase(indices.end() - 3);
    result.aScale = {};
    if (Value found = buffer(dyn_cast<BlockArgument>(value), indices)) {
      result.a = found;
      return isFloat(found, 32);
    }
    for (auto [integer, scale] : operandPairs<arith::MulFOp>(value)) {
      auto converted = integer.getDefiningOp<arith::SIToFPOp>();
      Value a = converted ? buffer(dyn_cast<BlockArgument>(converted.getIn()), indices) : Value();
      Value aScale = buffer(dyn_cast<BlockArgument>(scale), overGroups({loops.m}, {}));
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

  /// Whether the last dimensions, (quads,) rows of a panel and places, follow each other without gaps.
  static bool hasQuads(MemRefType type, int64_t dims) {
    SmallVector<int64_t> strides;
    int64_t offset, last = type.getRank() - 1;
    return type.hasStaticShape() && type.getDimSize(last) == 4 &&
           succeeded(type.getStridesAndOffset(strides, offset)) && strides[last] == 1 && strides[last - 1] == 4 &&
           (dims == 2 || strides[last - 2] == 4 * type.getDimSize(last - 1));
  }

  bool hasLayouts() {
    auto w = cast<MemRefType>(result.w.getType()), c = cast<MemRefType>(result.c.getType());
    if (!hasQuads(w, 3) || !isFloat(result.c, 32))
      return false;
    if (result.high && !hasQuads(cast<MemRefType>(result.high.getType()), 2))
      return false;
    for (Value field : {result.scale, result.minimum, result.factor, result.minimumFactor})
      if (field && !cast<MemRefType>(field.getType()).isLastDimUnitStride())
        return false;
    AffineMap out = op.getMatchingIndexingMap(op.getDpsInitOperand(0));
    if (!c.isLastDimUnitStride() || out.getNumResults() != 3 || out.getDimPosition(0) != loops.m ||
        out.getDimPosition(1) != loops.p || out.getDimPosition(2) != loops.j)
      return false;
    if (!result.hasIntegerActivations())
      return true;
    // No sum of a group's products may leave 32 bits; activations are read as whole quads.
    int64_t largestWeight = (result.nibbles ? (1 << result.bits) - 1 : 128) + std::abs(result.zero);
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
