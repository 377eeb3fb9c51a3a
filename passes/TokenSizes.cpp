//===- TokenSizes.cpp - Sizes as functions of the number of tokens --------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "TokenSizes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// How far a size is followed.
constexpr unsigned mostSteps = 64;

std::optional<TokenSize> sum(std::optional<TokenSize> x, std::optional<TokenSize> y, int64_t sign = 1) {
  if (!x || !y)
    return std::nullopt;
  return TokenSize{x->perToken + sign * y->perToken, x->constant + sign * y->constant};
}

std::optional<TokenSize> product(std::optional<TokenSize> x, std::optional<TokenSize> y) {
  if (!x || !y || (x->perToken != 0 && y->perToken != 0))
    return std::nullopt;
  if (x->perToken == 0)
    std::swap(x, y);
  return TokenSize{x->perToken * y->constant, x->constant * y->constant};
}

} // namespace

TokenSizes::TokenSizes(ModuleOp module) : module(module) {
  module.walk([&](func::CallOp call) { calls[call.getCalleeAttr().getAttr()].push_back(call); });
}

std::optional<TokenSize> TokenSizes::bytesOf(memref::AllocOp allocation) {
  MemRefType type = allocation.getType();
  Type element = type.getElementType();
  if (!type.getLayout().isIdentity() || type.getMemorySpace() || !(element.isIntOrFloat() || element.isIndex()))
    return std::nullopt;
  int64_t bits = element.isIndex() ? 64 : element.getIntOrFloatBitWidth();
  std::optional<TokenSize> bytes = TokenSize{0, static_cast<int64_t>(llvm::divideCeil(bits, 8))};
  for (int64_t size : type.getShape())
    if (!ShapedType::isDynamic(size))
      bytes = product(bytes, TokenSize{0, size});
  for (Value size : allocation.getDynamicSizes())
    bytes = product(bytes, valueOf(size));
  if (bytes && bytes->perToken < 0)
    return std::nullopt;
  return bytes;
}

std::optional<TokenSize> TokenSizes::foldOf(OpFoldResult value, unsigned depth) {
  if (std::optional<int64_t> constant = getConstantIntValue(value))
    return TokenSize{0, *constant};
  return valueOf(dyn_cast<Value>(value), depth);
}

std::optional<TokenSize> TokenSizes::valueOf(Value value, unsigned depth) {
  if (!value || ++depth > mostSteps)
    return std::nullopt;
  if (std::optional<int64_t> constant = getConstantIntValue(value))
    return TokenSize{0, *constant};
  if (auto argument = dyn_cast<BlockArgument>(value))
    return atCalls(argument, [&](Value operand) { return valueOf(operand, depth); });
  return llvm::TypeSwitch<Operation *, std::optional<TokenSize>>(value.getDefiningOp())
      .Case<arith::AddIOp>([&](auto op) { return sum(valueOf(op.getLhs(), depth), valueOf(op.getRhs(), depth)); })
      .Case<arith::SubIOp>([&](auto op) { return sum(valueOf(op.getLhs(), depth), valueOf(op.getRhs(), depth), -1); })
      .Case<arith::MulIOp>([&](auto op) { return product(valueOf(op.getLhs(), depth), valueOf(op.getRhs(), depth)); })
      .Case<arith::MaxUIOp, arith::MaxSIOp, arith::MinUIOp, arith::MinSIOp>([&](auto op) -> std::optional<TokenSize> {
        // The sizes of a broadcast's operands, mostly the same.
        std::optional<TokenSize> x = valueOf(op.getLhs(), depth), y = valueOf(op.getRhs(), depth);
        return x && y && *x == *y ? x : std::nullopt;
      })
      .Case<arith::IndexCastOp>([&](auto op) { return valueOf(op.getIn(), depth); })
      .Case<memref::DimOp>([&](memref::DimOp op) -> std::optional<TokenSize> {
        std::optional<int64_t> dim = op.getConstantIndex();
        return dim ? dimOf(op.getSource(), *dim, depth) : std::nullopt;
      })
      .Default(std::nullopt);
}

std::optional<TokenSize> TokenSizes::dimOf(Value buffer, int64_t dim, unsigned depth) {
  auto type = dyn_cast<MemRefType>(buffer.getType());
  if (!type || dim >= type.getRank() || ++depth > mostSteps)
    return std::nullopt;
  if (!type.isDynamicDim(dim))
    return TokenSize{0, type.getDimSize(dim)};
  if (auto argument = dyn_cast<BlockArgument>(buffer)) {
    auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
    if (function && function->hasAttr("buddy.entry") && argument.getArgNumber() == 1 && dim == 1)
      return TokenSize{1, 0};
    // A loop carries buffers of one size.
    if (auto loop = dyn_cast<scf::ForOp>(argument.getOwner()->getParentOp());
        loop && loop.getInductionVar() != argument)
      return dimOf(loop.getTiedLoopInit(argument)->get(), dim, depth);
    return atCalls(argument, [&](Value operand) { return dimOf(operand, dim, depth); });
  }
  return llvm::TypeSwitch<Operation *, std::optional<TokenSize>>(buffer.getDefiningOp())
      .Case<memref::AllocOp>([&](memref::AllocOp op) {
        return valueOf(op.getDynamicSizes()[op.getType().getDynamicDimIndex(dim)], depth);
      })
      .Case<memref::CastOp>([&](memref::CastOp op) { return dimOf(op.getSource(), dim, depth); })
      .Case<scf::ForOp>(
          [&](scf::ForOp op) { return dimOf(op.getTiedLoopInit(cast<OpResult>(buffer))->get(), dim, depth); })
      .Case<memref::SubViewOp>([&](memref::SubViewOp op) -> std::optional<TokenSize> {
        llvm::SmallBitVector dropped = op.getDroppedDims();
        int64_t kept = 0;
        for (auto [source, size] : llvm::enumerate(op.getMixedSizes()))
          if (!dropped.test(source) && kept++ == dim)
            return foldOf(size, depth);
        return std::nullopt;
      })
      .Case<memref::ExpandShapeOp>(
          [&](memref::ExpandShapeOp op) { return foldOf(op.getMixedOutputShape()[dim], depth); })
      .Case<memref::CollapseShapeOp>([&](memref::CollapseShapeOp op) {
        std::optional<TokenSize> size = TokenSize{0, 1};
        for (int64_t source : op.getReassociationIndices()[dim])
          size = product(size, dimOf(op.getSrc(), source, depth));
        return size;
      })
      .Default(std::nullopt);
}

std::optional<TokenSize> TokenSizes::atCalls(BlockArgument argument,
                                             llvm::function_ref<std::optional<TokenSize>(Value)> find) {
  auto function = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
  if (!function || !function.isPrivate())
    return std::nullopt;
  std::optional<TokenSize> result;
  for (func::CallOp call : calls[function.getSymNameAttr()]) {
    std::optional<TokenSize> size = find(call.getOperand(argument.getArgNumber()));
    if (!size || (result && !(*result == *size)))
      return std::nullopt;
    result = size;
  }
  return result;
}
