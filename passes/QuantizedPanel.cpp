//===- QuantizedPanel.cpp - What tiles read of a quantised panel ----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "QuantizedPanel.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// The most that a panel may take of a thread's stack.
constexpr int64_t mostUnpackedBytes = 256 * 1024;

Value constant(OpBuilder &b, Location loc, int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }

Value splat(OpBuilder &b, Location loc, VectorType type, Attribute value) {
  return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, value));
}

/// `buffer` with its last `count` dimensions as one.
Value collapseLast(OpBuilder &b, Location loc, Value buffer, int64_t count) {
  SmallVector<ReassociationIndices> dims;
  for (int64_t dim = 0, rank = cast<MemRefType>(buffer.getType()).getRank(); dim < rank; ++dim)
    if (dim <= rank - count)
      dims.push_back({dim});
    else
      dims.back().push_back(dim);
  return memref::CollapseShapeOp::create(b, loc, buffer, dims);
}

/// A loop from 0 to `count`.
void loop(OpBuilder &b, Location loc, int64_t count, function_ref<void(OpBuilder &, Value)> body) {
  scf::ForOp::create(b, loc, constant(b, loc, 0), constant(b, loc, count), constant(b, loc, 1), ValueRange(),
                     [&](OpBuilder &nested, Location, Value i, ValueRange) {
                       body(nested, i);
                       scf::YieldOp::create(nested, loc);
                     });
}

} // namespace

QuantizedPanel::QuantizedPanel(const QuantizedContraction &contraction, const IntegerDot *dot, int64_t lanes)
    : contraction(contraction), dot(dot), lanes(lanes) {}

void QuantizedPanel::prepare(OpBuilder &b, Location loc) {
  // The integers of a group follow each other.
  bytes = collapseLast(b, loc, contraction.w, 3);
  if (contraction.high)
    high = collapseLast(b, loc, contraction.high, 2);
}

int64_t QuantizedPanel::unpackedBytes() const {
  if (!dot)
    return 0;
  int64_t total = integerBytes() + (contraction.minimum ? 2 : 1) * fieldBytes();
  return total <= mostUnpackedBytes ? total : 0;
}

void QuantizedPanel::unpack(OpBuilder &b, Location loc, Value panel, Value scratch) {
  auto view = [&](ArrayRef<int64_t> shape, Type element, int64_t offset) -> Value {
    auto type = MemRefType::get(shape, element);
    return memref::ViewOp::create(b, loc, type, scratch, constant(b, loc, offset), ValueRange());
  };
  int64_t groups = contraction.groups(), width = contraction.panelWidth();
  Unpacked into;
  into.integers = view({groups * contraction.quads(), quadBytes()}, b.getI8Type(), 0);
  into.scales = view({groups, width}, b.getF32Type(), integerBytes());
  if (contraction.minimum)
    into.minima = view({groups, width}, b.getF32Type(), integerBytes() + fieldBytes());
  loop(b, loc, groups, [&](OpBuilder &inGroup, Value group) {
    unpackFields(inGroup, loc, panel, group, into);
    loop(inGroup, loc, contraction.quads(),
         [&](OpBuilder &inQuad, Value quad) { unpackQuad(inQuad, loc, panel, group, quad, into); });
  });
  unpacked = into;
}

int64_t QuantizedPanel::excess() const {
  bool isSubtracted = readsUnpacked && unpacksSigned();
  return (isSubtracted ? 0 : contraction.zero) + (dot ? dot->bias() : 0);
}

void QuantizedPanel::unpackFields(OpBuilder &b, Location loc, Value panel, Value group, const Unpacked &into) const {
  for (int64_t v = 0; v < vectors(); ++v) {
    SmallVector<Value> place = {group, constant(b, loc, v * lanes)};
    vector::StoreOp::create(b, loc, storedScale(b, loc, panel, group, v), into.scales, place);
    if (contraction.minimum)
      vector::StoreOp::create(b, loc, storedMinimum(b, loc, panel, group, v), into.minima, place);
  }
}

void QuantizedPanel::unpackQuad(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                Unpacked &into) const {
  Value row = flatQuad(b, loc, group, quad);
  auto bytesType = VectorType::get(factorBytes(), b.getI8Type());
  for (int64_t v = 0; v < vectors(); ++v) {
    into.forms = storedFactors(b, loc, panel, group, quad, v);
    for (auto [number, factor] : llvm::enumerate(into.forms)) {
      into.factor = cast<VectorType>(factor.weights.getType());
      Value weights = factor.weights;
      if (unpacksSigned() && contraction.zero != 0) {
        Attribute zero = b.getIntegerAttr(into.factor.getElementType(), contraction.zero);
        weights = arith::SubIOp::create(b, loc, weights, splat(b, loc, into.factor, zero));
      }
      weights = vector::BitCastOp::create(b, loc, bytesType, weights);
      Value place = constant(b, loc, (number * vectors() + v) * factorBytes());
      vector::StoreOp::create(b, loc, weights, into.integers, ValueRange{row, place});
    }
  }
}

SmallVector<SmallVector<QuadFactor>> QuantizedPanel::factors(OpBuilder &b, Location loc, Value panel, Value group,
                                                             Value quad, int64_t first, int64_t count) const {
  SmallVector<SmallVector<QuadFactor>> found(dot->factorsPerQuad());
  if (!readsUnpacked) {
    for (int64_t v = first; v < first + count; ++v)
      for (auto [number, factor] : llvm::enumerate(storedFactors(b, loc, panel, group, quad, v)))
        found[number].push_back(factor);
    return found;
  }
  Value row = flatQuad(b, loc, group, quad);
  auto bytesType = VectorType::get(factorBytes(), b.getI8Type());
  for (auto [number, form] : llvm::enumerate(unpacked.forms))
    for (int64_t v = first; v < first + count; ++v) {
      Value place = constant(b, loc, (number * vectors() + v) * factorBytes());
      Value loaded = vector::LoadOp::create(b, loc, bytesType, unpacked.integers, ValueRange{row, place});
      found[number].push_back(form);
      found[number].back().weights = vector::BitCastOp::create(b, loc, unpacked.factor, loaded);
    }
  return found;
}

Value QuantizedPanel::scale(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const {
  if (!readsUnpacked)
    return storedScale(b, loc, panel, group, vector);
  return vector::LoadOp::create(b, loc, VectorType::get(lanes, b.getF32Type()), unpacked.scales,
                                ValueRange{group, constant(b, loc, vector * lanes)});
}

Value QuantizedPanel::minimum(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const {
  if (!readsUnpacked)
    return storedMinimum(b, loc, panel, group, vector);
  return vector::LoadOp::create(b, loc, VectorType::get(lanes, b.getF32Type()), unpacked.minima,
                                ValueRange{group, constant(b, loc, vector * lanes)});
}

Value QuantizedPanel::storedQuad(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                 int64_t vector) const {
  Value start = b.createOrFold<arith::MulIOp>(loc, quad, constant(b, loc, 4 * contraction.panelWidth()));
  Value place = b.createOrFold<arith::AddIOp>(loc, start, constant(b, loc, vector * factorBytes()));
  return vector::LoadOp::create(b, loc, VectorType::get(factorBytes(), b.getI8Type()), bytes,
                                this->place(b, loc, panel, group, place));
}

SmallVector<Value> QuantizedPanel::storedUpper(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                               int64_t vector) const {
  if (!high)
    return {};
  Value loaded = vector::LoadOp::create(b, loc, VectorType::get(factorBytes(), b.getI8Type()), high,
                                        place(b, loc, panel, group, constant(b, loc, vector * factorBytes())));
  int64_t width = contraction.highBits();
  Value first = b.createOrFold<arith::MulIOp>(loc, quad, constant(b, loc, width));
  SmallVector<Value> found;
  for (int64_t half = 0; half < 2; ++half) {
    Value start = constant(b, loc, half * contraction.quads() * width);
    found.push_back(moveBits(b, loc, loaded, b.createOrFold<arith::AddIOp>(loc, first, start), width));
  }
  return found;
}

/// The bits shift, shift + 1, ... of each byte as its bits 4, 5, ...
Value QuantizedPanel::moveBits(OpBuilder &b, Location loc, Value bytes, Value shift, int64_t width) const {
  auto wordType = VectorType::get(lanes, b.getI32Type());
  // Bytes are moved in words; what comes from their neighbours is masked out.
  Value words = vector::BitCastOp::create(b, loc, wordType, bytes);
  auto number = [&](int64_t value) { return splat(b, loc, wordType, b.getI32IntegerAttr(value)); };
  if (std::optional<int64_t> known = getConstantIntValue(shift)) {
    if (*known < 4)
      words = arith::ShLIOp::create(b, loc, words, number(4 - *known));
    else if (*known > 4)
      words = arith::ShRUIOp::create(b, loc, words, number(*known - 4));
  } else {
    Value count = arith::IndexCastOp::create(b, loc, b.getI32Type(), shift);
    words = arith::ShRUIOp::create(b, loc, words, vector::BroadcastOp::create(b, loc, wordType, count));
    words = arith::ShLIOp::create(b, loc, words, number(4));
  }
  auto byteType = cast<VectorType>(bytes.getType());
  Value mask = splat(b, loc, byteType, b.getI8IntegerAttr(((1 << width) - 1) << 4));
  return arith::AndIOp::create(b, loc, vector::BitCastOp::create(b, loc, byteType, words), mask);
}

/// Where a field of groups has what belongs to a group.
SmallVector<Value> QuantizedPanel::place(OpBuilder &b, Location loc, Value panel, Value group, Value last) const {
  if (!contraction.hasFactors())
    return {panel, group, last};
  Value groups = constant(b, loc, contraction.blockGroups());
  return {panel, b.createOrFold<arith::DivUIOp>(loc, group, groups), b.createOrFold<arith::RemUIOp>(loc, group, groups),
          last};
}

SmallVector<QuadFactor> QuantizedPanel::storedFactors(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                                      int64_t vector) const {
  return dot->factors(b, loc, storedQuad(b, loc, panel, group, quad, vector),
                      storedUpper(b, loc, panel, group, quad, vector));
}

Value QuantizedPanel::storedScale(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const {
  return scaled(b, loc, contraction.scale, contraction.factor, contraction.hasSignedFactors,
                place(b, loc, panel, group, constant(b, loc, vector * lanes)));
}

Value QuantizedPanel::storedMinimum(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const {
  return scaled(b, loc, contraction.minimum, contraction.minimumFactor, /*isSigned=*/false,
                place(b, loc, panel, group, constant(b, loc, vector * lanes)));
}

/// Halves of the block at `place`, times the factors of the group there, if there are any.
Value QuantizedPanel::scaled(OpBuilder &b, Location loc, Value halves, Value factors, bool isSigned,
                             ArrayRef<Value> place) const {
  Value scale = this->halves(b, loc, halves, {place[0], place[1], place.back()});
  if (!factors)
    return scale;
  auto words = VectorType::get(lanes, b.getI32Type());
  Value factor = vector::LoadOp::create(b, loc, VectorType::get(lanes, b.getI8Type()), factors, place);
  factor = isSigned ? Value(arith::ExtSIOp::create(b, loc, words, factor))
                    : Value(arith::ExtUIOp::create(b, loc, words, factor));
  factor = arith::SIToFPOp::create(b, loc, scale.getType(), factor);
  return arith::MulFOp::create(b, loc, scale, factor);
}

Value QuantizedPanel::halves(OpBuilder &b, Location loc, Value buffer, ValueRange indices) const {
  Value halves = vector::LoadOp::create(b, loc, VectorType::get(lanes, b.getF16Type()), buffer, indices);
  return arith::ExtFOp::create(b, loc, VectorType::get(lanes, b.getF32Type()), halves);
}

void QuantizedPanel::prefetch(OpBuilder &b, Location loc, Value panel, Value group, Value distance,
                              unsigned locality) const {
  memref::PrefetchOp::create(b, loc, bytes, place(b, loc, panel, group, distance),
                             /*isWrite=*/false, locality,
                             /*isDataCache=*/true);
}

int64_t QuantizedPanel::blockBytes() const {
  SmallVector<int64_t> strides;
  int64_t offset;
  (void)cast<MemRefType>(contraction.w.getType()).getStridesAndOffset(strides, offset);
  return strides[1];
}

Value QuantizedPanel::flatQuad(OpBuilder &b, Location loc, Value group, Value quad) const {
  Value first = b.createOrFold<arith::MulIOp>(loc, group, constant(b, loc, contraction.quads()));
  return b.createOrFold<arith::AddIOp>(loc, first, quad);
}
