//===- PackedContraction.cpp - Contractions with packed weights -----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "PackedContraction.h"
#include "QuantizedContraction.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

bool hasUnitInnerStride(Value buffer) {
  auto type = dyn_cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  return type && succeeded(type.getStridesAndOffset(strides, offset)) && !strides.empty() && strides.back() == 1;
}

/// The allocation or argument that `buffer` is a view of.
Value rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewLikeOpInterface>())
    buffer = view.getViewSource();
  return buffer;
}

/// Finds a fill of `op`'s output with zero that nothing stands between: only ops of other allocations do.
linalg::FillOp findZeroFill(linalg::GenericOp op, Value output) {
  Value root = rootOf(output);
  for (Operation *previous = op->getPrevNode(); previous; previous = previous->getPrevNode()) {
    if (auto fill = dyn_cast<linalg::FillOp>(previous); fill && fill.getOutputs()[0] == output)
      return matchPattern(fill.getInputs()[0], m_AnyZeroFloat()) ? fill : linalg::FillOp();
    if (isMemoryEffectFree(previous) || isa<memref::AllocOp>(previous))
      continue;
    if (previous->getNumRegions() != 0 && !isa<linalg::LinalgOp>(previous))
      return {};
    // An op on buffers may be skipped if none of them can be this one: this one is an allocation of its own.
    bool other = isa_and_nonnull<memref::AllocOp>(root.getDefiningOp()) &&
                 llvm::none_of(previous->getOperands(), [&](Value operand) {
                   return isa<BaseMemRefType>(operand.getType()) && rootOf(operand) == root;
                 });
    if (!other)
      return {};
  }
  return {};
}

/// `value`, or what it is the widened form of.
Value beforeExtension(Value value) {
  auto extension = value.getDefiningOp<arith::ExtFOp>();
  return extension ? extension.getIn() : value;
}

} // namespace

bool mlir::buddy::isMultiplyAdd(Block *body, bool mayWiden) {
  auto args = body->getArguments();
  if (args.size() != 3 || (!mayWiden && !llvm::hasNItems(body->without_terminator(), 2)))
    return false;
  auto add = body->getTerminator()->getOperand(0).getDefiningOp<arith::AddFOp>();
  if (!add)
    return false;
  Value product = add.getLhs() == args[2] ? add.getRhs() : add.getRhs() == args[2] ? add.getLhs() : Value();
  auto mul = product ? product.getDefiningOp<arith::MulFOp>() : arith::MulFOp();
  if (!mul)
    return false;
  Value lhs = mul.getLhs(), rhs = mul.getRhs();
  if (mayWiden) {
    lhs = beforeExtension(lhs);
    rhs = beforeExtension(rhs);
  }
  return (lhs == args[0] && rhs == args[1]) || (lhs == args[1] && rhs == args[0]);
}

FailureOr<PackedContraction> mlir::buddy::matchPackedContraction(linalg::GenericOp op) {
  if (FailureOr<QuantizedContraction> quantized = matchQuantizedContraction(op); succeeded(quantized))
    return PackedContraction{op, quantized->a, quantized->w, quantized->c, findZeroFill(op, quantized->c)};
  if (!op.hasPureBufferSemantics() || op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 || op.getNumLoops() != 4 ||
      !isMultiplyAdd(op.getBody(), /*mayWiden=*/true))
    return failure();
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  Value a = op.getDpsInputs()[0], w = op.getDpsInputs()[1], c = op.getDpsInits()[0];
  if (maps[0].getNumResults() == 3) {
    std::swap(maps[0], maps[1]);
    std::swap(a, w);
  }
  if (maps[0].getNumResults() != 2 || maps[1].getNumResults() != 3 || maps[2].getNumResults() != 3)
    return failure();
  AffineExpr m = maps[0].getResult(0), k = maps[0].getResult(1), p = maps[1].getResult(0), j = maps[1].getResult(2);
  if (maps[1].getResult(1) != k || maps[2].getResults() != ArrayRef<AffineExpr>{m, p, j} ||
      !llvm::all_of(ArrayRef<AffineExpr>{m, k, p, j}, llvm::IsaPred<AffineDimExpr>))
    return failure();
  auto elementOf = [](Value buffer) { return cast<MemRefType>(buffer.getType()).getElementType(); };
  auto panels = cast<MemRefType>(w.getType());
  if (!isa<FloatType>(elementOf(a)) || elementOf(a) != elementOf(c) || !isa<FloatType>(elementOf(w)) ||
      panels.isDynamicDim(2) || !hasUnitInnerStride(w) || !hasUnitInnerStride(c))
    return failure();
  return PackedContraction{op, a, w, c, findZeroFill(op, c)};
}

bool mlir::buddy::joinsGroup(const PackedContraction &next, ArrayRef<PackedContraction> group) {
  const PackedContraction &last = group.back();
  auto isOwn = [](Value buffer) { return isa_and_nonnull<memref::AllocOp>(rootOf(buffer).getDefiningOp()); };
  if (next.a != last.a || next.op->getBlock() != last.op->getBlock() || !next.zeroFill ||
      next.panelWidth() != last.panelWidth() || !isOwn(next.c))
    return false;
  for (const PackedContraction &other : group)
    if (!other.zeroFill || !isOwn(other.c) || rootOf(other.c) == rootOf(next.c))
      return false;
  auto fillsOther = [&](Operation *op) {
    auto fill = dyn_cast<linalg::FillOp>(op);
    return fill && isOwn(fill.getOutputs()[0]) && rootOf(fill.getOutputs()[0]) != rootOf(next.a) &&
           llvm::none_of(
               group, [&](const PackedContraction &other) { return rootOf(fill.getOutputs()[0]) == rootOf(other.c); });
  };
  for (Operation *op = last.op->getNextNode(); op != next.op; op = op->getNextNode())
    if (!op || (!isMemoryEffectFree(op) && !isa<memref::AllocOp>(op) && !fillsOther(op)))
      return false;
  return true;
}
