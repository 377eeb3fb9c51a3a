//===- FloatTile.cpp - Register tiles over panels of floats ---------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "QuantizedTile.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

class FloatTile : public TileKernel {
public:
  FloatTile(PackedContraction contraction, const Target &target)
      : TileKernel(contraction.op), contraction(contraction), fullRows(target.tileRows),
        element(cast<MemRefType>(contraction.c.getType()).getElementType()),
        weightElement(cast<MemRefType>(contraction.w.getType()).getElementType()) {
    int64_t panel = contraction.panelWidth();
    int64_t lanes = target.lanes(element);
    while (panel % lanes != 0)
      lanes /= 2;
    vectorType = VectorType::get(lanes, element);
    vectors = panel / lanes;
    // Wide panels (more vectors than a tile can hold) would spill; they are cut into groups of two vectors.
    group = vectors % 2 == 0 ? 2 : 1;
  }

  int64_t tileRows() const override { return fullRows; }

  int64_t rowBytes() const override {
    int64_t depth = cast<MemRefType>(contraction.a.getType()).getDimSize(1);
    return ShapedType::isDynamic(depth) ? 0 : depth * element.getIntOrFloatBitWidth() / 8;
  }

  void emit(OpBuilder &builder, Location location, int64_t rows, Value row, Value panel, bool isPrepared) override {
    moveTo(builder, location);
    aheadRow = aheadIndex ? firstRowAhead() : Value();
    for (int64_t first = 0; first < vectors; first += group)
      emitColumns(rows, row, panel, first);
  }

private:
  PackedContraction contraction;
  int64_t fullRows;
  Type element;       ///< of A, of C and of the sums
  Type weightElement; ///< at most as wide
  VectorType vectorType;
  Value aheadRow;  ///< where this tile fetches, in rows from its panel's first one; null: nowhere
  int64_t vectors; ///< per panel
  int64_t group;   ///< vectors of a panel that a tile covers

  Value size(Value buffer, int64_t dim) { return b.createOrFold<memref::DimOp>(loc, buffer, dim); }

  /// C[row .. row + rows, panel, first .. first + group vectors], all of K in registers.
  void emitColumns(int64_t rows, Value row, Value panel, int64_t first) {
    // Enough independent sums to cover the latency of the multiply-add; a single row reads U rows of the panel at once.
    constexpr int64_t sumsInFlight = 8;
    int64_t perSet = rows * group;
    int64_t sets = 1;
    while (sets * perSet < sumsInFlight)
      sets *= 2;
    int64_t unroll = std::max<int64_t>(sets, perSet > 12 ? 2 : 4);

    Value depth = size(contraction.w, 1);
    int64_t staticDepth = cast<MemRefType>(contraction.w.getType()).getDimSize(1);
    Value zero = arith::ConstantOp::create(b, loc, vectorType, b.getZeroAttr(vectorType));
    SmallVector<Value> sums(sets * perSet, zero);
    Value mainEnd = depth;
    bool hasTail = ShapedType::isDynamic(staticDepth) || staticDepth % unroll != 0;
    if (hasTail) {
      Value rest = b.createOrFold<arith::RemUIOp>(loc, depth, constant(unroll));
      mainEnd = b.createOrFold<arith::SubIOp>(loc, depth, rest);
    }
    auto main = scf::ForOp::create(b, loc, constant(0), mainEnd, constant(unroll), sums,
                                   [&](OpBuilder &nested, Location, Value k, ValueRange carried) {
                                     SmallVector<Value> next(carried);
                                     at(nested, [&] {
                                       for (int64_t u = 0; u < unroll; ++u)
                                         multiplyAdd(MutableArrayRef(next).slice((u % sets) * perSet, perSet), rows,
                                                     row, panel, first, add(k, u));
                                     });
                                     scf::YieldOp::create(nested, loc, next);
                                   });
    sums.assign(main.getResults().begin(), main.getResults().end());
    for (int64_t live = sets; live > 1; live /= 2)
      for (int64_t i = 0; i < live / 2 * perSet; ++i)
        sums[i] = arith::AddFOp::create(b, loc, sums[i], sums[i + live / 2 * perSet]);
    sums.resize(perSet);
    if (hasTail) {
      auto tail = scf::ForOp::create(b, loc, mainEnd, depth, constant(1), sums,
                                     [&](OpBuilder &nested, Location, Value k, ValueRange carried) {
                                       SmallVector<Value> next(carried);
                                       at(nested, [&] { multiplyAdd(next, rows, row, panel, first, k); });
                                       scf::YieldOp::create(nested, loc, next);
                                     });
      sums.assign(tail.getResults().begin(), tail.getResults().end());
    }
    store(sums, rows, row, panel, first);
  }

  /// sums[r, v] += A[row + r, k] * W[panel, k, v].
  void multiplyAdd(MutableArrayRef<Value> sums, int64_t rows, Value row, Value panel, int64_t first, Value k) {
    SmallVector<Value> columns;
    auto loaded = VectorType::get(lanes(), weightElement);
    for (int64_t v = 0; v < group; ++v) {
      Value column =
          vector::LoadOp::create(b, loc, loaded, contraction.w, ValueRange{panel, k, constant((first + v) * lanes())});
      columns.push_back(loaded == vectorType ? column : arith::ExtFOp::create(b, loc, vectorType, column));
    }
    if (first == 0)
      rows == 1 ? prefetchStream(panel, k) : prefetch(panel, k);
    for (int64_t r = 0; r < rows; ++r) {
      Value scalar = memref::LoadOp::create(b, loc, contraction.a, ValueRange{add(row, r), k});
      Value broadcast = vector::BroadcastOp::create(b, loc, vectorType, scalar);
      for (int64_t v = 0; v < group; ++v)
        sums[r * group + v] = vector::FMAOp::create(b, loc, broadcast, columns[v], sums[r * group + v]);
    }
  }

  /// A single row reads one long stream. Without a hint only as many loads are in flight as a core can wait for, which
  /// is less than memory gives. One line of a panel's row is enough: the hardware fetches its neighbour.
  void prefetchStream(Value panel, Value k) {
    constexpr int64_t distanceBytes = 4096;
    int64_t rowBytes = contraction.panelWidth() * weightElement.getIntOrFloatBitWidth() / 8;
    Value row = add(k, std::max<int64_t>(1, distanceBytes / rowBytes));
    memref::PrefetchOp::create(b, loc, contraction.w, ValueRange{panel, row, constant(0)}, /*isWrite=*/false,
                               /*localityHint=*/2, /*isDataCache=*/true);
  }

  /// Several tiles that go over a panel share the fetching of the next one; a tile that is alone reads ahead in its
  /// own.
  Value firstRowAhead() {
    constexpr int64_t ownDistance = 128;
    Value depth = size(contraction.w, 1);
    Value share = b.createOrFold<arith::ShRUIOp>(loc, depth, aheadShift);
    Value next = b.createOrFold<arith::AddIOp>(loc, depth, b.createOrFold<arith::MulIOp>(loc, aheadIndex, share));
    Value isAlone = b.createOrFold<arith::CmpIOp>(loc, arith::CmpIPredicate::eq, aheadShift, constant(0));
    return b.createOrFold<arith::SelectOp>(loc, isAlone, constant(ownDistance), next);
  }

  /// A tile computes for longer than it loads, so that the hardware by itself sees too few loads ahead to hide memory's
  /// latency.
  void prefetch(Value panel, Value k) {
    constexpr int64_t lineBytes = 64;
    int64_t lineElements = std::max<int64_t>(1, lineBytes * 8 / weightElement.getIntOrFloatBitWidth());
    if (!aheadRow)
      return;
    int64_t lines = std::max<int64_t>(1, contraction.panelWidth() / lineElements);
    Value row = arith::AddIOp::create(b, loc, aheadRow, arith::ShRUIOp::create(b, loc, k, aheadShift));
    for (int64_t line = 0; line < lines; ++line)
      memref::PrefetchOp::create(b, loc, contraction.w, ValueRange{panel, row, constant(line * lineElements)},
                                 /*isWrite=*/false, /*localityHint=*/2, /*isDataCache=*/true);
  }

  void store(ArrayRef<Value> sums, int64_t rows, Value row, Value panel, int64_t first) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < group; ++v) {
        SmallVector<Value> indices = {add(row, r), panel, constant((first + v) * lanes())};
        Value sum = sums[r * group + v];
        if (!contraction.zeroFill) {
          Value before = vector::LoadOp::create(b, loc, vectorType, contraction.c, indices);
          sum = arith::AddFOp::create(b, loc, before, sum);
        }
        vector::StoreOp::create(b, loc, sum, contraction.c, indices);
      }
  }

  int64_t lanes() const { return vectorType.getDimSize(0); }
};

} // namespace

TileKernel::~TileKernel() = default;

std::unique_ptr<TileKernel> mlir::buddy::makeTileKernel(const PackedContraction &contraction, const Target &target) {
  if (FailureOr<QuantizedContraction> quantized = matchQuantizedContraction(contraction.op); succeeded(quantized))
    return makeQuantizedTile(contraction, *quantized, target);
  return std::make_unique<FloatTile>(contraction, target);
}
