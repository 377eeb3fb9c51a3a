//===- WidenBooleans.cpp - Booleans are bytes in memory -------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/IR/Bufferization.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Func/Transforms/FuncConversions.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/SCF/Transforms/Patterns.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Transforms/DialectConversion.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_WIDENBOOLEANS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

bool isBoolean(Type type) { return type.isInteger(1); }

struct BooleanConverter : TypeConverter {
  BooleanConverter() {
    addConversion([](Type type) { return type; });
    addConversion([](RankedTensorType type) -> Type {
      if (!isBoolean(type.getElementType()))
        return type;
      return type.clone(IntegerType::get(type.getContext(), 8));
    });
  }
};

/// A scalar i1 as the byte that stands in memory.
Value widen(OpBuilder &b, Location loc, Value value) {
  return isBoolean(value.getType()) ? arith::ExtUIOp::create(b, loc, b.getI8Type(), value) : value;
}

/// Ops without a region keep what they do; scalars that they take or give are widened and narrowed.
struct WidenPlainOp : ConversionPattern {
  WidenPlainOp(const TypeConverter &converter, MLIRContext *context)
      : ConversionPattern(converter, MatchAnyOpTypeTag(), 1, context) {}

  LogicalResult matchAndRewrite(Operation *op, ArrayRef<Value> operands,
                                ConversionPatternRewriter &rewriter) const override {
    if (op->getNumRegions() != 0 || op->getNumSuccessors() != 0)
      return rewriter.notifyMatchFailure(op, "an op with regions");
    SmallVector<Value> widened;
    for (Value operand : operands)
      widened.push_back(isa<tensor::FromElementsOp>(op) ? widen(rewriter, op->getLoc(), operand) : operand);
    SmallVector<Type> types;
    if (failed(typeConverter->convertTypes(op->getResultTypes(), types)))
      return rewriter.notifyMatchFailure(op, "a type that can't be converted");
    if (isa<tensor::ExtractOp>(op))
      types = {rewriter.getI8Type()};
    OperationState state(op->getLoc(), op->getName(), widened, types, op->getAttrs());
    if (auto constant = dyn_cast<arith::ConstantOp>(op))
      state.attributes.set("value", widenedConstant(constant));
    Operation *made = rewriter.create(state);
    if (!isa<tensor::ExtractOp>(op)) {
      rewriter.replaceOp(op, made->getResults());
      return success();
    }
    rewriter.replaceOpWithNewOp<arith::TruncIOp>(op, rewriter.getI1Type(), made->getResult(0));
    return success();
  }

  static Attribute widenedConstant(arith::ConstantOp op) {
    auto dense = cast<DenseElementsAttr>(op.getValue());
    Type byte = IntegerType::get(op.getContext(), 8);
    return dense.mapValues(byte, [](const APInt &value) { return value.zext(8); });
  }
};

/// The body of a structured op computes on booleans as before: elements are narrowed at its start, results widened.
struct WidenStructuredOp : OpInterfaceConversionPattern<linalg::LinalgOp> {
  using OpInterfaceConversionPattern::OpInterfaceConversionPattern;

  LogicalResult matchAndRewrite(linalg::LinalgOp op, ArrayRef<Value> operands,
                                ConversionPatternRewriter &rewriter) const override {
    Location loc = op.getLoc();
    SmallVector<Value> ins;
    for (Value operand : operands.take_front(op.getNumDpsInputs()))
      ins.push_back(widen(rewriter, loc, operand));
    ValueRange outs = operands.take_back(op.getNumDpsInits());
    auto made = linalg::GenericOp::create(
        rewriter, loc, TypeRange(outs), ins, outs, op.getIndexingMapsArray(), op.getIteratorTypesArray(),
        [&](OpBuilder &b, Location bodyLoc, ValueRange elements) {
          IRMapping map;
          for (auto [old, element] : llvm::zip_equal(op.getBlock()->getArguments(), elements)) {
            bool narrowed = isBoolean(old.getType()) && !isBoolean(element.getType());
            map.map(old, narrowed ? arith::TruncIOp::create(b, bodyLoc, b.getI1Type(), element) : element);
          }
          for (Operation &inner : op.getBlock()->without_terminator())
            b.clone(inner, map);
          SmallVector<Value> results;
          for (Value result : op.getBlock()->getTerminator()->getOperands())
            results.push_back(widen(b, bodyLoc, map.lookupOrDefault(result)));
          linalg::YieldOp::create(b, bodyLoc, results);
        });
    rewriter.replaceOp(op, made.getResults());
    return success();
  }
};

struct WidenBooleans : buddy::impl::WidenBooleansBase<WidenBooleans> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    BooleanConverter converter;
    ConversionTarget target(*context);
    target.markUnknownOpDynamicallyLegal([&](Operation *op) {
      if (auto function = dyn_cast<func::FuncOp>(op))
        return converter.isSignatureLegal(function.getFunctionType());
      return converter.isLegal(op);
    });
    RewritePatternSet patterns(context);
    patterns.add<WidenPlainOp, WidenStructuredOp>(converter, context);
    populateFunctionOpInterfaceTypeConversionPattern<func::FuncOp>(patterns, converter);
    scf::populateSCFStructuralTypeConversionsAndLegality(converter, patterns, target);
    if (failed(applyPartialConversion(getOperation(), target, std::move(patterns))))
      signalPassFailure();
  }
};

} // namespace
