//===- VectorEmitter.h - Expressions of vector code -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_VECTOREMITTER_H
#define BUDDY_VECTOREMITTER_H

#include "Target.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace mlir::buddy {

/// Writes expressions and loops on f32 vectors as wide as the target's registers, at the builder's place.
class VectorEmitter {
protected:
  VectorEmitter(OpBuilder builder, Location loc, const Target &target)
      : b(builder), loc(loc), f32(b.getF32Type()), lanes(target.lanes(f32)), vectorType(VectorType::get(lanes, f32)) {}

  OpBuilder b;
  Location loc;
  Type f32;
  int64_t lanes;
  VectorType vectorType;

  Value index(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }
  Value add(Value x, Value y) { return b.createOrFold<arith::AddIOp>(loc, x, y); }
  Value add(Value x, int64_t y) { return y == 0 ? x : add(x, index(y)); }
  Value sub(Value x, Value y) { return b.createOrFold<arith::SubIOp>(loc, x, y); }
  Value mul(Value x, int64_t y) { return b.createOrFold<arith::MulIOp>(loc, x, index(y)); }
  Value min(Value x, Value y) { return b.createOrFold<arith::MinSIOp>(loc, x, y); }
  Value max(Value x, Value y) { return b.createOrFold<arith::MaxSIOp>(loc, x, y); }
  Value splat(Value scalar, VectorType type) { return vector::BroadcastOp::create(b, loc, type, scalar); }
  Value constant(float value, VectorType type) {
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, value));
  }
  Value load(Value buffer, ValueRange indices) { return memref::LoadOp::create(b, loc, buffer, indices); }
  void store(Value value, Value buffer, ValueRange indices) { memref::StoreOp::create(b, loc, value, buffer, indices); }
  Value loadVector(VectorType type, Value buffer, ValueRange indices) {
    return vector::LoadOp::create(b, loc, type, buffer, indices);
  }
  void storeVector(Value value, Value buffer, ValueRange indices) {
    vector::StoreOp::create(b, loc, value, buffer, indices);
  }
  /// The larger one, as one instruction: the operands' order decides what becomes of a NaN.
  Value larger(Value x, Value y) {
    Value greater = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, x, y);
    return arith::SelectOp::create(b, loc, greater, x, y);
  }
  Value ceilDiv(Value x, Value y) { return b.createOrFold<arith::CeilDivUIOp>(loc, x, y); }
  /// exp of numbers that are not positive, with an error of about one ulp. Below e^-86 it stays there: as a weight
  /// beside the 1 of the maximum that is nothing. A NaN stays NaN.
  Value expOfNonPositive(Value x);
  Value scalarExpOfNonPositive(Value x) {
    return vector::ExtractOp::create(b, loc, expOfNonPositive(splat(x, vectorType)), ArrayRef<int64_t>{0});
  }
  /// A buffer that all threads see.
  Value shared(ArrayRef<int64_t> shape) {
    return memref::AllocOp::create(b, loc, MemRefType::get(shape, f32), b.getI64IntegerAttr(64));
  }
  Value scratch(ArrayRef<int64_t> shape) {
    return memref::AllocaOp::create(b, loc, MemRefType::get(shape, f32), b.getI64IntegerAttr(64));
  }

  using Carried = SmallVector<Value>;
  Carried loop(Value from, Value to, int64_t step, ValueRange inits, function_ref<Carried(Value, ValueRange)> body) {
    auto forOp = scf::ForOp::create(b, loc, from, to, index(step), inits);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(forOp.getBody());
    Carried next = body(forOp.getInductionVar(), forOp.getRegionIterArgs());
    if (!inits.empty())
      scf::YieldOp::create(b, loc, next);
    return Carried(forOp.getResults());
  }
  void loop(Value from, Value to, int64_t step, function_ref<void(Value)> body) {
    loop(from, to, step, ValueRange(), [&](Value iv, ValueRange) {
      body(iv);
      return Carried();
    });
  }
  void parallel(Value count, function_ref<void(Value)> body) {
    auto op = scf::ParallelOp::create(b, loc, ValueRange{index(0)}, ValueRange{count}, ValueRange{index(1)});
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(op.getBody());
    body(op.getInductionVars()[0]);
  }

  /// The largest lane; NaNs are passed over.
  Value largestLane(Value vector);

  /// One vector whose lane i is the sum of the lanes of vectors[i].
  Value sumAcross(SmallVector<Value> vectors);

  /// Transposes lanes x lanes in registers.
  void transposeSquare(MutableArrayRef<Value> rows);
};

/// Replaces a function's body, which is a reference, by what `emit` writes into its one block, and a return.
void replaceBody(func::FuncOp function, function_ref<void()> emit);

} // namespace mlir::buddy

#endif // BUDDY_VECTOREMITTER_H
