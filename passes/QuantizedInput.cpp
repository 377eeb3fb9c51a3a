//===- QuantizedInput.cpp - Activations as quantised tiles read them ------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "QuantizedInput.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

using Body = function_ref<SmallVector<Value>(OpBuilder &, Location, ValueRange)>;

class InputWriter {
public:
  InputWriter(OpBuilder &b, Location loc, const QuantizedContraction &contraction)
      : b(b), loc(loc), contraction(contraction), aType(cast<MemRefType>(contraction.a.getType())) {}

  /// a[m, (g, h, q)] as words of four bytes.
  Value words() {
    ReassociationIndices all = llvm::to_vector<2>(llvm::seq<int64_t>(0, aType.getRank()));
    Value flat = memref::CollapseShapeOp::create(b, loc, contraction.a, ArrayRef<ReassociationIndices>{all});
    auto type = MemRefType::get({aType.getDimSize(0), contraction.depth() / 4}, b.getI32Type());
    Value zero = arith::ConstantIndexOp::create(b, loc, 0);
    return memref::ViewOp::create(b, loc, type, flat, zero, rowSizes());
  }

  /// The even and the odd bytes of words, widened to i16.
  std::pair<Value, Value> pairs(Value words) {
    auto type = cast<MemRefType>(words.getType());
    SmallVector<Value> found = prepared("pairs", {type, type}, words, {"parallel", "parallel"}, {}, Value(),
                                        [](OpBuilder &b, Location loc, ValueRange args) -> SmallVector<Value> {
                                          return {pairOf(b, loc, args[0], 0), pairOf(b, loc, args[0], 1)};
                                        });
    return {found[0], found[1]};
  }

  /// factor * sum_k a[m, g, k].
  Value groupSums(int64_t factor) {
    bool isInteger = contraction.hasIntegerActivations();
    Type type = isInteger ? Type(b.getI32Type()) : Type(b.getF32Type());
    Value a = contraction.a;
    unsigned depths = aType.getRank() - 2;
    if (aType.getLayout().isIdentity()) {
      ReassociationIndices group = llvm::to_vector<2>(llvm::seq<int64_t>(2, aType.getRank()));
      a = memref::CollapseShapeOp::create(b, loc, a, ArrayRef<ReassociationIndices>{{0}, {1}, group});
      depths = 1;
    }
    SmallVector<StringRef> iterators = {"parallel", "parallel"};
    iterators.append(depths, "reduction");
    Value zero = arith::ConstantOp::create(b, loc, b.getZeroAttr(type));
    return prepared(("sums " + Twine(factor)).str(), groupType(type), a, iterators, {}, zero,
                    [&](OpBuilder &b, Location loc, ValueRange args) -> SmallVector<Value> {
                      Value value = isInteger ? Value(arith::ExtSIOp::create(b, loc, type, args[0])) : args[0];
                      return {addMultiple(b, loc, args[1], value, factor)};
                    })
        .front();
  }

  /// float(sums[m, g]) * aScale[m, g].
  Value scaledSums(Value sums) {
    if (!contraction.hasIntegerActivations())
      return sums;
    Type f32 = b.getF32Type();
    return prepared("scaled sums", groupType(f32), contraction.aScale, {"parallel", "parallel"}, sums, Value(),
                    [&](OpBuilder &b, Location loc, ValueRange args) -> SmallVector<Value> {
                      Value sum = arith::SIToFPOp::create(b, loc, f32, args[1]);
                      return {arith::MulFOp::create(b, loc, sum, args[0])};
                    })
        .front();
  }

private:
  OpBuilder &b;
  Location loc;
  const QuantizedContraction &contraction;
  MemRefType aType;

  MemRefType groupType(Type element) { return MemRefType::get({aType.getDimSize(0), contraction.groups()}, element); }

  SmallVector<Value> rowSizes() {
    if (!aType.isDynamicDim(0))
      return {};
    return {memref::DimOp::create(b, loc, contraction.a, 0)};
  }

  /// Two bytes of a word, sign extended to i16: those at `first` and `first` + 2.
  static Value pairOf(OpBuilder &b, Location loc, Value word, int64_t first) {
    auto number = [&](int64_t value) { return arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(value)); };
    auto byte = [&](int64_t place) -> Value {
      Value top = arith::ShLIOp::create(b, loc, word, number(24 - 8 * place));
      return arith::ShRSIOp::create(b, loc, top, number(24));
    };
    Value low = arith::AndIOp::create(b, loc, byte(first), number(0xffff));
    Value high = arith::ShLIOp::create(b, loc, byte(first + 2), number(16));
    return arith::OrIOp::create(b, loc, low, high);
  }

  static Value addMultiple(OpBuilder &b, Location loc, Value sum, Value value, int64_t factor) {
    if (isa<FloatType>(value.getType())) {
      if (factor != 1)
        value = arith::MulFOp::create(b, loc, value, arith::ConstantOp::create(b, loc, b.getF32FloatAttr(factor)));
      return arith::AddFOp::create(b, loc, sum, value);
    }
    if (factor != 1)
      value = arith::MulIOp::create(b, loc, value, arith::ConstantOp::create(b, loc, b.getI32IntegerAttr(factor)));
    return arith::AddIOp::create(b, loc, sum, value);
  }

  /// Buffers of the types, computed from `source` (and from `second`, which has their shape) by a linalg.generic; or
  /// those that an earlier contraction of the same group has computed.
  SmallVector<Value> prepared(StringRef name, ArrayRef<MemRefType> types, Value source, ArrayRef<StringRef> iterators,
                              Value second, Value start, Body body) {
    if (linalg::GenericOp earlier = findPrepared(name))
      return SmallVector<Value>(earlier.getDpsInits());
    auto mark = b.getStringAttr(name);
    SmallVector<Value> inputs = {source}, outputs;
    if (second)
      inputs.push_back(second);
    for (MemRefType type : types) {
      outputs.push_back(memref::AllocOp::create(b, loc, type, rowSizes()));
      if (start)
        linalg::FillOp::create(b, loc, start, outputs.back())->setAttr(attribute, mark);
    }
    SmallVector<utils::IteratorType> kinds;
    for (StringRef iterator : iterators)
      kinds.push_back(*utils::symbolizeIteratorType(iterator));
    unsigned loops = kinds.size();
    SmallVector<AffineMap> maps;
    for (Value operand : llvm::concat<Value>(inputs, outputs))
      maps.push_back(AffineMap::getMultiDimIdentityMap(loops, b.getContext())
                         .getMajorSubMap(cast<MemRefType>(operand.getType()).getRank()));
    auto op = linalg::GenericOp::create(b, loc, inputs, outputs, maps, kinds,
                                        [&](OpBuilder &nested, Location at, ValueRange args) {
                                          linalg::YieldOp::create(nested, at, body(nested, at, args));
                                        });
    op->setAttr(attribute, mark);
    return outputs;
  }

  static constexpr StringLiteral attribute = "buddy.prepared";

  /// Looks back as far as there are only ops of this class. They write to buffers of their own.
  linalg::GenericOp findPrepared(StringRef name) {
    Block *block = b.getInsertionBlock();
    Operation *op = nullptr;
    if (!block->empty())
      op = b.getInsertionPoint() == block->end() ? &block->back() : b.getInsertionPoint()->getPrevNode();
    for (; op; op = op->getPrevNode()) {
      auto mark = op->getAttrOfType<StringAttr>(attribute);
      if (auto generic = dyn_cast<linalg::GenericOp>(op);
          generic && mark && mark.getValue() == name && readsActivations(generic))
        return generic;
      if (!mark && !isMemoryEffectFree(op) && !isa<memref::AllocOp>(op))
        return {};
    }
    return {};
  }

  /// Whether the op's first input is a view of this contraction's activations or of their scales.
  bool readsActivations(linalg::GenericOp op) {
    for (Value buffer = op.getDpsInputs()[0];;) {
      if (buffer == contraction.a || buffer == contraction.aScale)
        return true;
      auto view = buffer.getDefiningOp<ViewLikeOpInterface>();
      if (!view)
        return false;
      buffer = view.getViewSource();
    }
  }
};

} // namespace

QuantizedInput::QuantizedInput(OpBuilder &b, Location loc, const QuantizedContraction &contraction, int64_t excess,
                               bool pairs) {
  InputWriter writer(b, loc, contraction);
  if (contraction.hasIntegerActivations()) {
    bytes = writer.words();
    if (pairs)
      std::tie(evens, odds) = writer.pairs(bytes);
  }
  if (excess != 0)
    offsets = writer.groupSums(-excess);
  if (contraction.minimum)
    sums = writer.scaledSums(writer.groupSums(1));
}
