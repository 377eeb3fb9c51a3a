//===- IntegerDot.cpp - Exact sums of products of small integers ----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "IntegerDot.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

class QuadDot : public IntegerDot {
protected:
  QuadDot(int64_t bits, int64_t lanes) : nibbles(bits < 8), bits(bits), lanes(lanes) {}

  bool nibbles; ///< two integers share a byte
  int64_t bits, lanes;

  static VectorType vectorOf(OpBuilder &b, int64_t count, unsigned bits) {
    return VectorType::get(count, b.getIntegerType(bits));
  }
  static Value splat(OpBuilder &b, Location loc, VectorType type, int64_t value) {
    unsigned width = type.getElementTypeBitWidth();
    APInt bits(width, static_cast<uint64_t>(value), /*isSigned=*/true, /*implicitTrunc=*/true);
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, bits));
  }
  static Value shiftRight(OpBuilder &b, Location loc, Value value, int64_t bits, bool isSigned) {
    Value count = splat(b, loc, cast<VectorType>(value.getType()), bits);
    return isSigned ? Value(arith::ShRSIOp::create(b, loc, value, count))
                    : Value(arith::ShRUIOp::create(b, loc, value, count));
  }
  static Value mask(OpBuilder &b, Location loc, Value value, int64_t bits) {
    return arith::AndIOp::create(b, loc, value, splat(b, loc, cast<VectorType>(value.getType()), bits));
  }
  static Value call(OpBuilder &b, Location loc, StringRef intrinsic, Type result, ValueRange operands) {
    return LLVM::CallIntrinsicOp::create(b, loc, result, b.getStringAttr(intrinsic), operands).getResults();
  }

  Value asBytes(OpBuilder &b, Location loc, Value word) const {
    return vector::BitCastOp::create(b, loc, vectorOf(b, 4 * lanes, 8), word);
  }
  Value asPairs(OpBuilder &b, Location loc, Value word) const {
    return vector::BitCastOp::create(b, loc, vectorOf(b, 2 * lanes, 16), word);
  }

  /// Low and high nibbles as bytes, with their upper bits.
  static SmallVector<QuadFactor> nibbleBytes(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) {
    Value low = mask(b, loc, bytes, 15);
    Value high = shiftRight(b, loc, bytes, 4, /*isSigned=*/false);
    if (!upper.empty()) {
      low = arith::OrIOp::create(b, loc, low, upper[0]);
      high = arith::OrIOp::create(b, loc, high, upper[1]);
    }
    return {{low, 0, QuadWord::bytes}, {high, 1, QuadWord::bytes}};
  }

  /// Signed bytes as i16: those with an even place in their quad, and those with an odd one.
  SmallVector<QuadFactor> bytePairs(OpBuilder &b, Location loc, Value bytes) const {
    Value pairs = asPairs(b, loc, bytes);
    Value moved = arith::ShLIOp::create(b, loc, pairs, splat(b, loc, cast<VectorType>(pairs.getType()), 8));
    return {{shiftRight(b, loc, moved, 8, /*isSigned=*/true), 0, QuadWord::evens},
            {shiftRight(b, loc, pairs, 8, /*isSigned=*/true), 0, QuadWord::odds}};
  }

  /// Nibbles as i16, likewise.
  SmallVector<QuadFactor> nibblePairs(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const {
    if (!upper.empty()) {
      SmallVector<QuadFactor> found;
      for (const QuadFactor &whole : nibbleBytes(b, loc, bytes, upper)) {
        Value pairs = asPairs(b, loc, whole.weights);
        found.push_back({mask(b, loc, pairs, 255), whole.half, QuadWord::evens});
        found.push_back({shiftRight(b, loc, pairs, 8, /*isSigned=*/false), whole.half, QuadWord::odds});
      }
      return found;
    }
    Value pairs = asPairs(b, loc, bytes);
    auto part = [&](int64_t shift) {
      return mask(b, loc, shift == 0 ? pairs : shiftRight(b, loc, pairs, shift, /*isSigned=*/false), 15);
    };
    return {{part(0), 0, QuadWord::evens},
            {part(8), 0, QuadWord::odds},
            {part(4), 1, QuadWord::evens},
            {part(12), 1, QuadWord::odds}};
  }
};

/// Any target: products in i16, sums of as many of them as fit, then in i32.
class PlainDot : public QuadDot {
public:
  PlainDot(int64_t bits, int64_t lanes) : QuadDot(bits, lanes) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    return nibbles ? nibblePairs(b, loc, bytes, upper) : bytePairs(b, loc, bytes);
  }
  int64_t factorsPerQuad() const override { return nibbles ? 4 : 2; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    Value product = arith::MulIOp::create(b, loc, weights, asPairs(b, loc, word));
    return sum ? Value(arith::AddIOp::create(b, loc, sum, product)) : product;
  }

  /// Bytes: 2 * 128 * 127 = 32,512; 4 bits: 16 * 15 * 127 = 30,480; 5: 8 * 31 * 127 = 31,496; 6: 4 * 63 * 127 = 32,004;
  /// all at most 32,767.
  int64_t narrowCapacity() const override { return nibbles ? 256 >> bits : 2; }

  Value widen(OpBuilder &b, Location loc, Value narrow) const override {
    VectorType wide = vectorOf(b, lanes, 32);
    Value both = vector::BitCastOp::create(b, loc, wide, narrow);
    Value moved = arith::ShLIOp::create(b, loc, both, splat(b, loc, wide, 16));
    Value low = shiftRight(b, loc, moved, 16, /*isSigned=*/true);
    return arith::AddIOp::create(b, loc, low, shiftRight(b, loc, both, 16, /*isSigned=*/true));
  }

  bool takesPairs() const override { return true; }
};

/// Any target, activations of 16 bits: one product in i32 after the other.
class WidePlainDot : public QuadDot {
public:
  WidePlainDot(int64_t bits, int64_t lanes) : QuadDot(bits, lanes) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    auto asQuads = [&](Value vector) { return vector::BitCastOp::create(b, loc, vectorOf(b, lanes, 32), vector); };
    SmallVector<QuadFactor> found;
    for (int64_t half = 0; half < (nibbles ? 2 : 1); ++half)
      for (int64_t place = 0; place < 4; ++place)
        found.push_back({integerOfQuad(b, loc, asQuads(bytes), upper.empty() ? Value() : asQuads(upper[half]), nibbles,
                                       half, place),
                         half, static_cast<QuadWord>(static_cast<int64_t>(QuadWord::place0) + place)});
    return found;
  }

  int64_t factorsPerQuad() const override { return nibbles ? 8 : 4; }
  bool takesSigned() const override { return true; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    return arith::AddIOp::create(b, loc, sum, arith::MulIOp::create(b, loc, weights, word));
  }
};

/// The products of pairs of i16, of vectors of any width.
StringRef pairProduct(int64_t lanes) {
  return lanes == 16  ? "llvm.x86.avx512.pmaddw.d.512"
         : lanes == 8 ? "llvm.x86.avx2.pmadd.wd"
                      : "llvm.x86.sse2.pmadd.wd";
}

/// x86, activations of 16 bits: pmaddwd from i16 to i32, or vpdpwssd, which adds at once.
class WidePairDot : public QuadDot {
public:
  WidePairDot(int64_t bits, int64_t lanes, bool fused) : QuadDot(bits, lanes), fused(fused) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    return nibbles ? nibblePairs(b, loc, bytes, upper) : bytePairs(b, loc, bytes);
  }

  int64_t factorsPerQuad() const override { return nibbles ? 4 : 2; }
  bool takesSigned() const override { return true; }
  bool isFused() const override { return fused; }
  bool takesPairs() const override { return true; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    Value pairs = asPairs(b, loc, word);
    if (!fused)
      return arith::AddIOp::create(b, loc, sum, call(b, loc, pairProduct(lanes), sum.getType(), {weights, pairs}));
    std::string name = ("llvm.x86.avx512.vpdpwssd." + Twine(32 * lanes)).str();
    return call(b, loc, name, sum.getType(), {sum, weights, pairs});
  }

private:
  bool fused;
};

/// SSSE3, AVX2, AVX-512BW. Bytes by pmaddwd, from i16 to i32. Nibbles by pmaddubsw: it saturates at 32,767, and one
/// product of pairs is at most 2 * 15 * 127 = 3,810, eight of them together 30,480; of 5 bits four together 31,496, of
/// 6 bits two together 32,004.
class PairDot : public QuadDot {
public:
  PairDot(int64_t bits, int64_t lanes) : QuadDot(bits, lanes) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    return nibbles ? nibbleBytes(b, loc, bytes, upper) : bytePairs(b, loc, bytes);
  }

  int64_t factorsPerQuad() const override { return 2; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    Value product = nibbles
                        ? call(b, loc, byteProduct(), vectorOf(b, 2 * lanes, 16), {weights, asBytes(b, loc, word)})
                        : call(b, loc, pairProduct(lanes), vectorOf(b, lanes, 32), {weights, asPairs(b, loc, word)});
    return sum ? Value(arith::AddIOp::create(b, loc, sum, product)) : product;
  }

  int64_t narrowCapacity() const override { return nibbles ? 128 >> bits : 0; }

  Value widen(OpBuilder &b, Location loc, Value narrow) const override {
    Value ones = splat(b, loc, cast<VectorType>(narrow.getType()), 1);
    return call(b, loc, pairProduct(lanes), vectorOf(b, lanes, 32), {narrow, ones});
  }

  bool takesPairs() const override { return !nibbles; }

private:
  StringRef byteProduct() const {
    return lanes == 16  ? "llvm.x86.avx512.pmaddubs.w.512"
           : lanes == 8 ? "llvm.x86.avx2.pmadd.ub.sw"
                        : "llvm.x86.ssse3.pmadd.ub.sw.128";
  }
};

/// AVX-512 VNNI: vpdpbusd adds four products of an unsigned and a signed byte. Signed weights become unsigned ones by
/// adding 128 (flipping the highest bit).
class VnniDot : public QuadDot {
public:
  VnniDot(int64_t bits, int64_t lanes) : QuadDot(bits, lanes) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    if (nibbles)
      return nibbleBytes(b, loc, bytes, upper);
    Value flip = splat(b, loc, cast<VectorType>(bytes.getType()), 128);
    return {{arith::XOrIOp::create(b, loc, bytes, flip), 0, QuadWord::bytes}};
  }

  int64_t bias() const override { return nibbles ? 0 : 128; }

  int64_t factorsPerQuad() const override { return nibbles ? 2 : 1; }
  bool isFused() const override { return true; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    std::string name = ("llvm.x86.avx512.vpdpbusd." + Twine(32 * lanes)).str();
    return call(b, loc, name, sum.getType(), {sum, weights, asBytes(b, loc, word)});
  }
};

/// Arm: sdot adds four products of signed bytes.
class SdotDot : public QuadDot {
public:
  SdotDot(int64_t bits, int64_t lanes) : QuadDot(bits, lanes) {}

  SmallVector<QuadFactor> factors(OpBuilder &b, Location loc, Value bytes, ArrayRef<Value> upper) const override {
    if (nibbles)
      return nibbleBytes(b, loc, bytes, upper);
    return {{bytes, 0, QuadWord::bytes}};
  }

  int64_t factorsPerQuad() const override { return nibbles ? 2 : 1; }
  bool takesSigned() const override { return nibbles; }
  bool isFused() const override { return true; }

  Value multiplyAdd(OpBuilder &b, Location loc, Value sum, Value weights, Value word) const override {
    return call(b, loc, "llvm.aarch64.neon.sdot.v4i32.v16i8", sum.getType(), {sum, weights, asBytes(b, loc, word)});
  }
};

} // namespace

IntegerDot::~IntegerDot() = default;

int64_t mlir::buddy::integerDotLanes(const Target &target) {
  int64_t lanes = std::max<int64_t>(1, target.vectorBits / 32);
  switch (target.int8Dot) {
  case Int8Dot::none:
    return lanes;
  case Int8Dot::ssse3:
  case Int8Dot::neonDotprod:
    return std::min<int64_t>(lanes, 4);
  case Int8Dot::avx2:
    return std::min<int64_t>(lanes, 8);
  case Int8Dot::avx512bw:
  case Int8Dot::avx512vnni:
    return std::min<int64_t>(lanes, 16);
  }
  llvm_unreachable("all forms are listed");
}

std::unique_ptr<IntegerDot> mlir::buddy::makeIntegerDot(Int8Dot form, int64_t bits, bool wide, int64_t lanes) {
  bool isX86 = form != Int8Dot::none && form != Int8Dot::neonDotprod && (lanes == 4 || lanes == 8 || lanes == 16);
  if (isX86 && wide)
    return std::make_unique<WidePairDot>(bits, lanes, form == Int8Dot::avx512vnni);
  if (isX86 && form == Int8Dot::avx512vnni)
    return std::make_unique<VnniDot>(bits, lanes);
  if (isX86)
    return std::make_unique<PairDot>(bits, lanes);
  if (wide)
    return std::make_unique<WidePlainDot>(bits, lanes);
  if (form == Int8Dot::neonDotprod && lanes == 4)
    return std::make_unique<SdotDot>(bits, lanes);
  return std::make_unique<PlainDot>(bits, lanes);
}

Value mlir::buddy::integerOfQuad(OpBuilder &b, Location loc, Value quads, Value upper, bool nibbles, int64_t half,
                                 int64_t place) {
  auto number = [&](int64_t value) -> Value {
    auto splat = DenseElementsAttr::get(cast<VectorType>(quads.getType()), b.getI32IntegerAttr(value).getValue());
    return arith::ConstantOp::create(b, loc, splat);
  };
  auto part = [&](Value value, int64_t shift, int64_t bits) -> Value {
    Value moved = shift == 0 ? value : Value(arith::ShRUIOp::create(b, loc, value, number(shift)));
    return shift + bits == 32 ? moved : Value(arith::AndIOp::create(b, loc, moved, number((1 << bits) - 1)));
  };
  if (nibbles) {
    Value integer = part(quads, 8 * place + 4 * half, 4);
    return upper ? Value(arith::OrIOp::create(b, loc, integer, part(upper, 8 * place, 8))) : integer;
  }
  Value moved = place == 3 ? quads : Value(arith::ShLIOp::create(b, loc, quads, number(24 - 8 * place)));
  return arith::ShRSIOp::create(b, loc, moved, number(24));
}
