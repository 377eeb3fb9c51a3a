//===- MatmulVectorize.cpp - Register tiles for packed contractions -------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "Target.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

#include "llvm/ADT/bit.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_MATMULVECTORIZE
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::Target;

namespace {

/// Bytes of A that one block of rows may take, so that it stays in a core's second-level cache while the panels go by.
constexpr int64_t rowBlockBytes = 256 * 1024;

/// C[m, p, j] += A[m, k] * W[p, k, j].
struct PackedContraction {
  linalg::GenericOp op;
  Value a, w, c;
  linalg::FillOp zeroFill; ///< C's initialisation right before; null if C holds a value to add to
};

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

bool isMultiplyAdd(Block *body) {
  auto args = body->getArguments();
  if (args.size() != 3 || !llvm::hasNItems(body->without_terminator(), 2))
    return false;
  auto add = body->getTerminator()->getOperand(0).getDefiningOp<arith::AddFOp>();
  if (!add)
    return false;
  Value product = add.getLhs() == args[2] ? add.getRhs() : add.getRhs() == args[2] ? add.getLhs() : Value();
  auto mul = product ? product.getDefiningOp<arith::MulFOp>() : arith::MulFOp();
  return mul && mul.getLhs() != mul.getRhs() && llvm::is_contained(args, mul.getLhs()) &&
         llvm::is_contained(args, mul.getRhs()) && mul.getLhs() != args[2] && mul.getRhs() != args[2];
}

FailureOr<PackedContraction> matchPackedContraction(linalg::GenericOp op) {
  if (!op.hasPureBufferSemantics() || op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 || op.getNumLoops() != 4 ||
      !isMultiplyAdd(op.getBody()))
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
  if (!isa<FloatType>(elementOf(a)) || elementOf(a) != elementOf(w) || elementOf(a) != elementOf(c) ||
      panels.isDynamicDim(2) || !hasUnitInnerStride(w) || !hasUnitInnerStride(c))
    return failure();
  return PackedContraction{op, a, w, c, findZeroFill(op, c)};
}

/// Whether `next` may run in one loop with the contractions `group` before it: it has the same input and the same kind
/// of panels, and what stands in between is no more than allocations, views and fills of other buffers.
bool joins(const PackedContraction &next, ArrayRef<PackedContraction> group) {
  const PackedContraction &last = group.back();
  auto panels = [](const PackedContraction &contraction) { return cast<MemRefType>(contraction.w.getType()); };
  auto isOwn = [](Value buffer) { return isa_and_nonnull<memref::AllocOp>(rootOf(buffer).getDefiningOp()); };
  if (next.a != last.a || next.op->getBlock() != last.op->getBlock() || !next.zeroFill ||
      panels(next).getDimSize(2) != panels(last).getDimSize(2) || !isOwn(next.c))
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

/// Writes the loops of contractions with the same input, at the place of the last one.
class ContractionEmitter {
public:
  ContractionEmitter(ArrayRef<PackedContraction> contractions, const Target &target)
      : contractions(contractions), contraction(contractions.back()), b(contraction.op.getContext()),
        loc(locationOf(contractions)), element(cast<MemRefType>(contraction.w.getType()).getElementType()),
        tileRows(target.tileRows) {
    b.setInsertionPoint(contraction.op);
    int64_t panel = cast<MemRefType>(contraction.w.getType()).getDimSize(2);
    int64_t lanes = target.lanes(element);
    while (panel % lanes != 0)
      lanes /= 2;
    vectorType = VectorType::get(lanes, element);
    vectors = panel / lanes;
    // Wide panels (more vectors than a tile can hold) would spill; they are cut into groups of two vectors.
    group = vectors % 2 == 0 ? 2 : 1;
  }

  void emit() {
    auto aType = cast<MemRefType>(contraction.a.getType());
    int64_t staticRows = aType.getDimSize(0);
    Value panels = size(contractions.front().w, 0);
    for (const PackedContraction &other : contractions.drop_front())
      panels = b.createOrFold<arith::AddIOp>(loc, panels, size(other.w, 0));
    if (staticRows == 1) {
      scf::ParallelOp::create(
          b, loc, ValueRange{constant(0)}, ValueRange{panels}, ValueRange{constant(1)},
          [&](OpBuilder &nested, Location, ValueRange ivs) {
            at(nested, [&] { dispatch(ivs[0], contractions, [&](Value panel) { emitTile(1, constant(0), panel); }); });
          });
      return;
    }
    // Blocks of rows outside, panels inside: a block of A stays in cache while a thread goes through the panels.
    Value rows = size(contraction.a, 0);
    int64_t block = blockRows(aType.getDimSize(1));
    Value blockSize = constant(block);
    Value blocks = b.createOrFold<arith::CeilDivUIOp>(loc, rows, blockSize);
    scf::ParallelOp::create(b, loc, ValueRange{constant(0), constant(0)}, ValueRange{blocks, panels},
                            ValueRange{constant(1), constant(1)}, [&](OpBuilder &nested, Location, ValueRange ivs) {
                              at(nested, [&] {
                                dispatch(ivs[1], contractions, [&](Value panel) {
                                  emitRowBlock(ivs[0], panel, rows, blockSize, staticRows, block);
                                });
                              });
                            });
  }

private:
  ArrayRef<PackedContraction> contractions;
  PackedContraction contraction; ///< the one whose tiles are written
  OpBuilder b;
  Location loc;
  Type element;
  int64_t tileRows;
  VectorType vectorType;
  int64_t vectors; ///< per panel
  int64_t group;   ///< vectors of a panel that a tile covers

  template <typename Body> void at(OpBuilder &nested, Body body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
    body();
  }

  static Location locationOf(ArrayRef<PackedContraction> contractions) {
    SmallVector<Location> locations;
    for (PackedContraction contraction : contractions)
      locations.push_back(contraction.op.getLoc());
    return FusedLoc::get(locations.front().getContext(), locations);
  }

  /// Finds the contraction that a panel of all of them belongs to, and runs `body` with its number in there.
  void dispatch(Value panel, ArrayRef<PackedContraction> candidates, function_ref<void(Value)> body) {
    contraction = candidates.front();
    if (candidates.size() == 1)
      return body(panel);
    Value count = size(contraction.w, 0);
    Value isFirst = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, panel, count);
    auto choice = scf::IfOp::create(b, loc, isFirst, /*withElseRegion=*/true);
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    body(panel);
    b.setInsertionPointToStart(choice.elseBlock());
    dispatch(arith::SubIOp::create(b, loc, panel, count), candidates.drop_front(), body);
  }

  Value constant(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }
  Value add(Value lhs, int64_t rhs) { return rhs == 0 ? lhs : b.createOrFold<arith::AddIOp>(loc, lhs, constant(rhs)); }
  Value size(Value buffer, int64_t dim) { return b.createOrFold<memref::DimOp>(loc, buffer, dim); }

  int64_t blockRows(int64_t depth) const {
    constexpr int64_t mostTiles = 32;
    if (ShapedType::isDynamic(depth))
      return 8 * tileRows;
    int64_t bytes = depth * element.getIntOrFloatBitWidth() / 8;
    return std::clamp<int64_t>(rowBlockBytes / std::max<int64_t>(1, bytes) / tileRows, 1, mostTiles) * tileRows;
  }

  /// All rows of one block against one panel: full tiles, then one tile of the rows that are left.
  void emitRowBlock(Value blockIndex, Value panel, Value rows, Value blockSize, int64_t staticRows, int64_t block) {
    Value begin = arith::MulIOp::create(b, loc, blockIndex, blockSize);
    Value left = arith::SubIOp::create(b, loc, rows, begin);
    Value count = arith::MinUIOp::create(b, loc, left, blockSize);
    Value tile = constant(tileRows);
    Value rest = tileRows == 1 ? constant(0) : Value(arith::RemUIOp::create(b, loc, count, tile));
    Value full = arith::SubIOp::create(b, loc, count, rest);
    Value end = arith::AddIOp::create(b, loc, begin, full);
    if (ShapedType::isDynamic(staticRows) || staticRows >= tileRows) {
      scf::ForOp::create(b, loc, begin, end, tile, ValueRange(),
                         [&](OpBuilder &nested, Location, Value row, ValueRange) {
                           at(nested, [&] { emitTile(tileRows, row, panel); });
                           scf::YieldOp::create(nested, loc);
                         });
    }
    // Every block but the last is whole tiles, so static rows have one possible rest.
    if (!ShapedType::isDynamic(staticRows)) {
      int64_t staticRest = staticRows % tileRows;
      if (staticRest == 0)
        return;
      if (staticRows <= block)
        return emitTile(staticRest, end, panel);
      Value last = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, rest, constant(0));
      scf::IfOp::create(b, loc, last, [&](OpBuilder &nested, Location) {
        at(nested, [&] { emitTile(staticRest, end, panel); });
        scf::YieldOp::create(nested, loc);
      });
      return;
    }
    // The rest in powers of two: few kernels serve every number of rows.
    for (int64_t part = llvm::bit_floor<uint64_t>(std::max<int64_t>(tileRows - 1, 0)); part >= 1; part /= 2) {
      Value taken = arith::AndIOp::create(b, loc, rest, constant(part));
      Value present = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, taken, constant(0));
      scf::IfOp::create(b, loc, present, [&](OpBuilder &nested, Location) {
        at(nested, [&] { emitTile(part, end, panel); });
        scf::YieldOp::create(nested, loc);
      });
      end = arith::AddIOp::create(b, loc, end, taken);
    }
  }

  void emitTile(int64_t rows, Value row, Value panel) {
    for (int64_t first = 0; first < vectors; first += group)
      emitTileColumns(rows, row, panel, first);
  }

  /// C[row .. row + rows, panel, first .. first + group vectors], all of K in registers.
  void emitTileColumns(int64_t rows, Value row, Value panel, int64_t first) {
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
    for (int64_t v = 0; v < group; ++v)
      columns.push_back(vector::LoadOp::create(b, loc, vectorType, contraction.w,
                                               ValueRange{panel, k, constant((first + v) * lanes())}));
    if (rows > 1)
      prefetch(panel, k, first);
    for (int64_t r = 0; r < rows; ++r) {
      Value scalar = memref::LoadOp::create(b, loc, contraction.a, ValueRange{add(row, r), k});
      Value broadcast = vector::BroadcastOp::create(b, loc, vectorType, scalar);
      for (int64_t v = 0; v < group; ++v)
        sums[r * group + v] = vector::FMAOp::create(b, loc, broadcast, columns[v], sums[r * group + v]);
    }
  }

  /// A tile computes for longer than it loads, so that the hardware sees too few loads ahead to hide memory's latency.
  /// Past the end of a panel this is the next one. (A single row loads fast enough by itself.)
  void prefetch(Value panel, Value k, int64_t first) {
    constexpr int64_t distance = 128, lineBytes = 64;
    int64_t lineElements = std::max<int64_t>(1, lineBytes * 8 / element.getIntOrFloatBitWidth());
    for (int64_t column = first * lanes(); column < (first + group) * lanes(); column += lineElements)
      memref::PrefetchOp::create(b, loc, contraction.w, ValueRange{panel, add(k, distance), constant(column)},
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

struct MatmulVectorize : buddy::impl::MatmulVectorizeBase<MatmulVectorize> {
  using Base::Base;

  void runOnOperation() override {
    FailureOr<Target> target = Target::get(getOperation());
    if (failed(target))
      return signalPassFailure();
    SmallVector<linalg::GenericOp> generics;
    getOperation().walk([&](linalg::GenericOp op) { generics.push_back(op); });
    // All are found before the first one becomes loops, which would hide the fills in front of it.
    SmallVector<PackedContraction> contractions;
    for (linalg::GenericOp op : generics)
      if (FailureOr<PackedContraction> contraction = matchPackedContraction(op); succeeded(contraction))
        contractions.push_back(*contraction);
    for (ArrayRef<PackedContraction> rest = contractions; !rest.empty();) {
      size_t count = 1;
      while (group && count < rest.size() && joins(rest[count], rest.take_front(count)))
        ++count;
      ContractionEmitter(rest.take_front(count), *target).emit();
      for (PackedContraction contraction : rest.take_front(count)) {
        if (contraction.zeroFill)
          contraction.zeroFill.erase();
        contraction.op.erase();
      }
      rest = rest.drop_front(count);
    }
  }
};

} // namespace
