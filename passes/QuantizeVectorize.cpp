//===- QuantizeVectorize.cpp - Rounding activations in registers ----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "VectorEmitter.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include "llvm/Support/MathExtras.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_QUANTIZEVECTORIZE
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// The function's arguments and sizes.
struct Quantizer {
  Value x, integers, scales;
  int64_t group;    ///< columns that share a scale
  int64_t rotation; ///< columns that are mixed, a power of two that divides the group; 1: none
};

FailureOr<Quantizer> matchQuantizer(func::FuncOp function, DictionaryAttr options) {
  auto refuse = [&](const Twine &reason) {
    return emitError(function.getLoc()) << "quantising function '" << function.getName() << "' " << reason
                                        << "; see the contract in docs/architecture.md";
  };
  auto rotation = options.getAs<IntegerAttr>("rotation");
  if (!rotation)
    return refuse("has no integer 'rotation' in its buddy.quantize");
  auto bufferOf = [&](unsigned number) {
    auto type = dyn_cast<MemRefType>(function.getArgument(number).getType());
    return type && type.getLayout().isIdentity() && type.getRank() >= 2 ? type : MemRefType();
  };
  if (function.getNumArguments() != 3 || function.getNumResults() != 0)
    return refuse("must have the buffers x, integers and scales, no results");
  MemRefType x = bufferOf(0), integers = bufferOf(1), scales = bufferOf(2);
  if (!x || !integers || !scales || x.getRank() != 2 || scales.getRank() != 2 || !x.getElementType().isF32() ||
      !scales.getElementType().isF32() ||
      !(integers.getElementType().isInteger(8) || integers.getElementType().isInteger(16)))
    return refuse("must have contiguous buffers: x and scales of rank 2 in f32, integers in i8 or i16");
  int64_t columns = x.getDimSize(1), groups = scales.getDimSize(1), mixed = rotation.getInt();
  int64_t rows = x.getDimSize(0);
  if (ShapedType::isDynamic(columns) || ShapedType::isDynamic(groups) || groups < 1 || columns % groups != 0 ||
      ShapedType::getNumElements(integers.getShape().drop_front()) != columns || integers.getDimSize(0) != rows ||
      scales.getDimSize(0) != rows || integers.getDimSize(1) != groups)
    return refuse("has buffers whose sizes do not fit together");
  if (mixed < 1 || !llvm::isPowerOf2_64(mixed) || (columns / groups) % mixed != 0)
    return refuse("has a 'rotation' that is no power of two that divides a group");
  return Quantizer{function.getArgument(0), function.getArgument(1), function.getArgument(2), columns / groups, mixed};
}

class QuantizeEmitter : VectorEmitter {
public:
  QuantizeEmitter(func::FuncOp function, const Quantizer &quantizer, const Target &target)
      : VectorEmitter(OpBuilder::atBlockEnd(&function.getBody().front()), function.getLoc(), target), it(quantizer) {
    // A block is what registers hold at once: what is mixed, or a group that is short enough.
    constexpr int64_t mostVectors = 8;
    auto powerIn = [](int64_t size) { return size & -size; };
    width = std::min(lanes, powerIn(it.group));
    block = it.rotation > 1 ? it.rotation : it.group <= mostVectors * width ? it.group : width;
    width = std::min(width, powerIn(block));
    vectorType = VectorType::get(width, f32);
  }

  void emit() {
    auto type = cast<MemRefType>(it.integers.getType());
    ReassociationIndices columns = llvm::to_vector<2>(llvm::seq<int64_t>(1, type.getRank()));
    integers = memref::CollapseShapeOp::create(b, loc, it.integers, ArrayRef<ReassociationIndices>{{0}, columns});
    auto emitRow = [&](Value row) {
      int64_t groups = cast<MemRefType>(it.scales.getType()).getDimSize(1);
      loop(index(0), index(groups), 1, [&](Value group) { emitGroup(row, group); });
    };
    if (type.getDimSize(0) == 1)
      return emitRow(index(0));
    parallel(b.createOrFold<memref::DimOp>(loc, it.x, 0), emitRow);
  }

private:
  Quantizer it;
  int64_t block, width;
  Value integers; ///< rows x columns

  void emitGroup(Value row, Value group) {
    Value start = mul(group, it.group);
    if (block == it.group) {
      SmallVector<Value> values = loadBlock(row, start);
      Value factor = finishScale(row, group, largest(values));
      return storeBlock(values, factor, row, start);
    }
    // A long group is gone through twice: keeping what was mixed would take more than mixing it anew.
    Value end = add(start, it.group);
    Value most = loop(start, end, block, ValueRange{constant(0.0f, vectorType)}, [&](Value first, ValueRange carried) {
      return Carried{arith::MaximumFOp::create(b, loc, carried[0], largest(loadBlock(row, first)))};
    })[0];
    Value factor = finishScale(row, group, most);
    loop(start, end, block, [&](Value first) { storeBlock(loadBlock(row, first), factor, row, first); });
  }

  /// A block's numbers as they will be rounded.
  SmallVector<Value> loadBlock(Value row, Value first) {
    SmallVector<Value> values;
    for (int64_t offset = 0; offset < block; offset += width)
      values.push_back(loadVector(vectorType, it.x, {row, add(first, offset)}));
    if (it.rotation > 1)
      rotate(values);
    return values;
  }

  /// Times the Hadamard matrix of `rotation` rows, and the power of two that is left to activations.
  void rotate(SmallVector<Value> &values) {
    for (int64_t stride = 1; stride < width; stride *= 2)
      for (Value &value : values) {
        SmallVector<int64_t> partner;
        SmallVector<float> signs;
        for (int64_t lane = 0; lane < width; ++lane) {
          partner.push_back(lane ^ stride);
          signs.push_back(lane & stride ? -1.0f : 1.0f);
        }
        Value other = vector::ShuffleOp::create(b, loc, value, value, partner);
        Value sign = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(vectorType, ArrayRef<float>(signs)));
        value = vector::FMAOp::create(b, loc, value, sign, other);
      }
    for (size_t stride = 1; stride < values.size(); stride *= 2)
      for (size_t i = 0; i < values.size(); ++i)
        if (!(i & stride)) {
          Value low = values[i], high = values[i + stride];
          values[i] = arith::AddFOp::create(b, loc, low, high);
          values[i + stride] = arith::SubFOp::create(b, loc, low, high);
        }
    int64_t stages = llvm::Log2_64(it.rotation);
    Value share = constant(std::ldexp(1.0f, -static_cast<int>((stages + 1) / 2)), vectorType);
    for (Value &value : values)
      value = arith::MulFOp::create(b, loc, value, share);
  }

  /// The largest magnitude in each lane; a NaN stays.
  Value largest(ArrayRef<Value> values) {
    SmallVector<Value> magnitudes;
    for (Value value : values)
      magnitudes.push_back(math::AbsFOp::create(b, loc, value));
    for (; magnitudes.size() > 1; magnitudes.pop_back())
      magnitudes.front() = arith::MaximumFOp::create(b, loc, magnitudes.front(), magnitudes.back());
    return magnitudes.front();
  }

  /// Stores a group's scale, given its largest magnitudes, and gives what its numbers are multiplied with.
  Value finishScale(Value row, Value group, Value magnitudes) {
    Value most = vector::ReductionOp::create(b, loc, vector::CombiningKind::MAXIMUMF, magnitudes);
    auto number = [&](float value) -> Value { return arith::ConstantOp::create(b, loc, b.getF32FloatAttr(value)); };
    bool isByte = cast<MemRefType>(it.integers.getType()).getElementType().isInteger(8);
    Value largestInteger = number(isByte ? 127.0f : 32767.0f);
    store(arith::DivFOp::create(b, loc, most, largestInteger), it.scales, {row, group});
    Value none = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, most, number(0x1p-100f));
    Value factor = arith::DivFOp::create(b, loc, largestInteger, most);
    return splat(arith::SelectOp::create(b, loc, none, number(0.0f), factor), vectorType);
  }

  void storeBlock(ArrayRef<Value> values, Value factor, Value row, Value first) {
    auto type = VectorType::get(width, cast<MemRefType>(integers.getType()).getElementType());
    for (auto [number, value] : llvm::enumerate(values)) {
      Value whole = math::RoundEvenOp::create(b, loc, arith::MulFOp::create(b, loc, value, factor));
      storeVector(arith::FPToSIOp::create(b, loc, type, whole), integers,
                  {row, add(first, static_cast<int64_t>(number) * width)});
    }
  }
};

struct QuantizeVectorize : buddy::impl::QuantizeVectorizeBase<QuantizeVectorize> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    auto options = function->getAttrOfType<DictionaryAttr>("buddy.quantize");
    if (!options || function.isExternal())
      return;
    FailureOr<Target> target = Target::get(function);
    FailureOr<Quantizer> quantizer = matchQuantizer(function, options);
    if (failed(target) || failed(quantizer))
      return signalPassFailure();
    replaceBody(function, [&] { QuantizeEmitter(function, *quantizer, *target).emit(); });
    function->removeAttr("buddy.quantize");
  }
};

} // namespace
