//===- VectorEmitter.cpp - Expressions of vector code ---------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "VectorEmitter.h"

using namespace mlir;
using namespace mlir::buddy;

Value VectorEmitter::expOfNonPositive(Value x) {
  auto type = cast<VectorType>(x.getType());
  auto bits = VectorType::get(type.getShape(), b.getI32Type());
  auto number = [&](float value) { return constant(value, type); };
  auto fma = [&](Value y, Value z, Value w) -> Value { return vector::FMAOp::create(b, loc, y, z, w); };
  x = larger(number(-86.0f), x);
  // x = n * ln 2 + r. The sum with 1.5 * 2^23 has no room for a fraction; its low bits are n.
  Value rounder = number(12582912.0f);
  Value shifted = fma(x, number(1.44269504f), rounder);
  Value n = arith::SubFOp::create(b, loc, shifted, rounder);
  Value r = fma(n, number(2.12194440e-4f), fma(n, number(-0.693359375f), x));
  Value sum = number(1.9875691500e-4f);
  for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f, 1.0f, 1.0f})
    sum = fma(sum, r, number(coefficient));
  Value places = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(bits, int32_t(23)));
  Value exponent = arith::ShLIOp::create(b, loc, arith::BitcastOp::create(b, loc, bits, shifted), places);
  sum = arith::AddIOp::create(b, loc, arith::BitcastOp::create(b, loc, bits, sum), exponent);
  return arith::BitcastOp::create(b, loc, type, sum);
}

Value VectorEmitter::largestLane(Value vector) {
  // As a tree: the reduction of the vector dialect looks for NaNs at each lane in turn.
  for (int64_t half = cast<VectorType>(vector.getType()).getDimSize(0) / 2; half >= 1; half /= 2) {
    auto lower = llvm::to_vector(llvm::seq<int64_t>(0, half)),
         upper = llvm::to_vector(llvm::seq<int64_t>(half, 2 * half));
    vector = larger(vector::ShuffleOp::create(b, loc, vector, vector, lower),
                    vector::ShuffleOp::create(b, loc, vector, vector, upper));
  }
  return vector::ExtractOp::create(b, loc, vector, ArrayRef<int64_t>{0});
}

Value VectorEmitter::sumAcross(SmallVector<Value> vectors) {
  // Adds halves of ever shorter blocks of two vectors.
  for (int64_t block = lanes; block > 1; block /= 2) {
    int64_t half = block / 2;
    SmallVector<int64_t> lower, upper;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      bool second = lane % block >= half;
      lower.push_back(second ? lanes + lane - half : lane);
      upper.push_back(second ? lanes + lane : lane + half);
    }
    for (int64_t i = 0; i < half; ++i) {
      Value x = vectors[i], y = vectors[i + half];
      vectors[i] = arith::AddFOp::create(b, loc, vector::ShuffleOp::create(b, loc, x, y, lower),
                                         vector::ShuffleOp::create(b, loc, x, y, upper));
    }
  }
  return vectors[0];
}

void VectorEmitter::transposeSquare(MutableArrayRef<Value> rows) {
  // Swaps the off-diagonal quarters, then those of the quarters, and so on.
  for (int64_t half = lanes / 2; half >= 1; half /= 2)
    for (int64_t i = 0; i < lanes; ++i) {
      if (i & half)
        continue;
      SmallVector<int64_t> upper, lower;
      for (int64_t e = 0; e < lanes; ++e) {
        upper.push_back(e & half ? lanes + e - half : e);
        lower.push_back(e & half ? lanes + e : e + half);
      }
      Value x = rows[i], y = rows[i + half];
      rows[i] = vector::ShuffleOp::create(b, loc, x, y, upper);
      rows[i + half] = vector::ShuffleOp::create(b, loc, x, y, lower);
    }
}

void mlir::buddy::replaceBody(func::FuncOp function, function_ref<void()> emit) {
  function.getBody().dropAllReferences();
  while (function.getBody().getBlocks().size() > 1)
    function.getBody().back().erase();
  function.getBody().front().clear();
  emit();
  OpBuilder b = OpBuilder::atBlockEnd(&function.getBody().front());
  func::ReturnOp::create(b, function.getLoc());
}
