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
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

using Body = function_ref<SmallVector<Value>(OpBuilder &, Location, ValueRange)>;

class InputWriter {
public:
  InputWriter(OpBuilder &b, Location loc, const QuantizedContraction &contraction)
      : b(b), loc(loc), contraction(contraction), aType(cast<MemRefType>(contraction.a.getType())) {}

  /// a[m, (g, h, q, r)].
  Value integers() {
    ReassociationIndices depth = llvm::to_vector<2>(llvm::seq<int64_t>(1, aType.getRank()));
    return memref::CollapseShapeOp::create(b, loc, contraction.a, ArrayRef<ReassociationIndices>{{0}, depth});
  }

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

  /// The even and the odd ones of activations in i16: M x K/2 each.
  std::pair<Value, Value> widePairs(Value integers) {
    if (std::pair<Value, Value> earlier = findWidePairs(); earlier.first)
      return earlier;
    auto type = MemRefType::get({aType.getDimSize(0), contraction.depth() / 2}, b.getI16Type());
    auto allocate = [&](StringRef name) -> Value {
      auto op = memref::AllocOp::create(b, loc, type, rowSizes());
      op->setAttr(attribute, b.getStringAttr(name));
      return op;
    };
    Value evens = allocate("evens"), odds = allocate("odds");
    Value zero = arith::ConstantIndexOp::create(b, loc, 0), one = arith::ConstantIndexOp::create(b, loc, 1);
    if (aType.getDimSize(0) == 1) {
      auto loop = scf::ForOp::create(b, loc, zero, one, one, ValueRange(),
                                     [&](OpBuilder &nested, Location at, Value row, ValueRange) {
                                       splitRow(nested, at, integers, evens, odds, row);
                                       scf::YieldOp::create(nested, at);
                                     });
      loop->setAttr(attribute, b.getStringAttr("wide pairs"));
      return {evens, odds};
    }
    Value rows = b.createOrFold<memref::DimOp>(loc, integers, 0);
    auto loop = scf::ParallelOp::create(
        b, loc, ValueRange{zero}, ValueRange{rows}, ValueRange{one},
        [&](OpBuilder &nested, Location at, ValueRange ivs) { splitRow(nested, at, integers, evens, odds, ivs[0]); });
    loop->setAttr(attribute, b.getStringAttr("wide pairs"));
    return {evens, odds};
  }

  /// factor * sum_k a[m, g, k].
  Value groupSums(int64_t factor) {
    bool isInteger = contraction.hasIntegerActivations();
    Type type = isInteger ? Type(b.getI32Type()) : Type(b.getF32Type());
    // Rows and groups are one loop, which has not to be taken apart by a division in every iteration.
    Value a = contraction.a;
    bool flat = aType.getLayout().isIdentity();
    SmallVector<StringRef> iterators(flat ? 1 : 2, "parallel");
    iterators.append(flat ? 1 : aType.getRank() - 2, "reduction");
    if (flat)
      a = memref::CollapseShapeOp::create(
          b, loc, a,
          ArrayRef<ReassociationIndices>{{0, 1}, llvm::to_vector<2>(llvm::seq<int64_t>(2, aType.getRank()))});
    Value zero = arith::ConstantOp::create(b, loc, b.getZeroAttr(type));
    return prepared(("sums " + Twine(factor)).str(), groupType(type), a, iterators, {}, zero,
                    [&](OpBuilder &b, Location loc, ValueRange args) -> SmallVector<Value> {
                      Value value = isInteger ? Value(arith::ExtSIOp::create(b, loc, type, args[0])) : args[0];
                      return {addMultiple(b, loc, args[1], value, factor)};
                    })
        .front();
  }

  /// factor * sum_k A[m, g, k].
  Value scaledSums(int64_t factor) {
    Value sums = groupSums(factor);
    if (!contraction.hasIntegerActivations())
      return sums;
    Type f32 = b.getF32Type();
    return prepared(("scaled sums " + Twine(factor)).str(), groupType(f32), contraction.aScale,
                    {"parallel", "parallel"}, sums, Value(),
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

  /// evens[row, i], odds[row, i] = integers[row, 2i], integers[row, 2i + 1].
  void splitRow(OpBuilder &b, Location loc, Value integers, Value evens, Value odds, Value row) {
    constexpr int64_t most = 64; // elements at once; K is a multiple of 4
    int64_t depth = contraction.depth(), looped = depth - depth % most;
    auto constant = [&](OpBuilder &b, int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); };
    auto split = [&](OpBuilder &b, Value place, int64_t count) {
      Value loaded =
          vector::LoadOp::create(b, loc, VectorType::get(count, b.getI16Type()), integers, ValueRange{row, place});
      auto parts = vector::DeinterleaveOp::create(b, loc, loaded);
      Value half = arith::DivUIOp::create(b, loc, place, constant(b, 2));
      vector::StoreOp::create(b, loc, parts.getRes1(), evens, ValueRange{row, half});
      vector::StoreOp::create(b, loc, parts.getRes2(), odds, ValueRange{row, half});
    };
    if (looped != 0)
      scf::ForOp::create(b, loc, constant(b, 0), constant(b, looped), constant(b, most), ValueRange(),
                         [&](OpBuilder &nested, Location at, Value place, ValueRange) {
                           split(nested, place, most);
                           scf::YieldOp::create(nested, at);
                         });
    for (int64_t count = most / 2; count >= 4; count /= 2)
      if ((depth - looped) & count) {
        split(b, constant(b, looped), count);
        looped += count;
      }
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
    if (linalg::GenericOp earlier = findPrepared(name)) {
      SmallVector<Value> buffers(earlier.getDpsInits());
      for (Value &buffer : buffers)
        if (auto flat = buffer.getDefiningOp<memref::CollapseShapeOp>())
          buffer = flat.getSrc();
      return buffers;
    }
    auto mark = b.getStringAttr(name);
    SmallVector<Value> inputs = {source}, buffers, outputs;
    if (second)
      inputs.push_back(second);
    bool flat = iterators.size() == 2 && iterators.back() == "reduction";
    for (MemRefType type : types) {
      Value buffer = memref::AllocOp::create(b, loc, type, rowSizes());
      if (start)
        linalg::FillOp::create(b, loc, start, buffer)->setAttr(attribute, mark);
      buffers.push_back(buffer);
      outputs.push_back(
          flat ? Value(memref::CollapseShapeOp::create(b, loc, buffer, ArrayRef<ReassociationIndices>{{0, 1}}))
               : buffer);
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
    return buffers;
  }

  static constexpr StringLiteral attribute = "buddy.prepared";

  /// Calls `isFound` for the ops in front that this class has written, the last one first, until it is true. They write
  /// to buffers of their own; where another op may write, the search ends.
  void lookBack(function_ref<bool(Operation *, StringRef)> isFound) {
    Block *block = b.getInsertionBlock();
    Operation *op = nullptr;
    if (!block->empty())
      op = b.getInsertionPoint() == block->end() ? &block->back() : b.getInsertionPoint()->getPrevNode();
    for (; op; op = op->getPrevNode()) {
      auto mark = op->getAttrOfType<StringAttr>(attribute);
      if (mark ? isFound(op, mark.getValue()) : !isMemoryEffectFree(op) && !isa<memref::AllocOp>(op))
        return;
    }
  }

  linalg::GenericOp findPrepared(StringRef name) {
    linalg::GenericOp found;
    lookBack([&](Operation *op, StringRef mark) {
      auto generic = dyn_cast<linalg::GenericOp>(op);
      if (generic && mark == name && isActivations(generic.getDpsInputs()[0]))
        found = generic;
      return found != nullptr;
    });
    return found;
  }

  std::pair<Value, Value> findWidePairs() {
    std::pair<Value, Value> found;
    bool isOurs = false;
    lookBack([&](Operation *op, StringRef mark) {
      if (mark == "wide pairs")
        op->walk([&](vector::LoadOp load) { isOurs |= isActivations(load.getBase()); });
      if (isOurs && mark == "odds")
        found.second = op->getResult(0);
      if (isOurs && mark == "evens")
        found.first = op->getResult(0);
      return found.first != nullptr;
    });
    return found;
  }

  static Value beforeReshapes(Value buffer) {
    while (buffer && isa_and_present<memref::CollapseShapeOp, memref::ExpandShapeOp>(buffer.getDefiningOp()))
      buffer = buffer.getDefiningOp<ViewLikeOpInterface>().getViewSource();
    return buffer;
  }

  /// Whether it is a view of this contraction's activations or of their scales.
  bool isActivations(Value buffer) {
    Value a = beforeReshapes(contraction.a), aScale = beforeReshapes(contraction.aScale);
    while (buffer != a && buffer != aScale) {
      auto view = buffer.getDefiningOp<ViewLikeOpInterface>();
      if (!view)
        return false;
      buffer = view.getViewSource();
    }
    return true;
  }
};

} // namespace

QuantizedInput::QuantizedInput(OpBuilder &b, Location loc, const QuantizedContraction &contraction, int64_t excess,
                               bool pairs) {
  InputWriter writer(b, loc, contraction);
  if (contraction.hasIntegerActivations()) {
    integers = writer.integers();
    if (!contraction.hasWideActivations())
      bytes = writer.words();
    if (pairs)
      std::tie(evens, odds) = contraction.hasWideActivations() ? writer.widePairs(integers) : writer.pairs(bytes);
  }
  if (excess != 0)
    offsets = writer.groupSums(-excess);
  if (contraction.minimum)
    sums = writer.scaledSums(contraction.subtractsMinimum ? -1 : 1);
}
