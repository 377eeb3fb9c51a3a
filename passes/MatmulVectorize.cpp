//===- MatmulVectorize.cpp - Register tiles for packed contractions -------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "TileKernel.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

#include "llvm/ADT/bit.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_MATMULVECTORIZE
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// Bytes of A that one block of rows may take, so that it stays in a core's second-level cache while the panels go by.
constexpr int64_t rowBlockBytes = 256 * 1024;

/// Writes the loops of contractions with the same input, at the place of the last one.
class ContractionEmitter {
public:
  ContractionEmitter(ArrayRef<PackedContraction> contractions, const Target &target)
      : b(lastOf(contractions)), loc(locationOf(contractions)) {
    for (const PackedContraction &contraction : contractions)
      members.push_back({contraction, makeTileKernel(contraction, target)});
    tileRows = members.front().kernel->tileRows();
  }

  void emit() {
    for (Member &member : members)
      member.kernel->prepare(b, loc);
    int64_t staticRows = members.front().contraction.staticRows();
    Value panels = panelsOf(members.front());
    for (const Member &member : llvm::drop_begin(members))
      panels = b.createOrFold<arith::AddIOp>(loc, panels, panelsOf(member));
    if (staticRows == 1) {
      scf::ParallelOp::create(
          b, loc, ValueRange{constant(0)}, ValueRange{panels}, ValueRange{constant(1)},
          [&](OpBuilder &nested, Location, ValueRange ivs) {
            at(nested, [&] { dispatch(ivs[0], members, [&](Value panel) { emitTile(1, constant(0), panel); }); });
          });
      return;
    }
    // Blocks of rows outside, panels inside: a block of A stays in cache while a thread goes through the panels.
    Value rows = size(members.front().contraction.c, 0);
    int64_t block = blockRows();
    Value blockSize = constant(block);
    Value blocks = b.createOrFold<arith::CeilDivUIOp>(loc, rows, blockSize);
    scf::ParallelOp::create(b, loc, ValueRange{constant(0), constant(0)}, ValueRange{blocks, panels},
                            ValueRange{constant(1), constant(1)}, [&](OpBuilder &nested, Location, ValueRange ivs) {
                              at(nested, [&] {
                                dispatch(ivs[1], members, [&](Value panel) {
                                  emitRowBlock(ivs[0], panel, rows, blockSize, staticRows, block);
                                });
                              });
                            });
  }

private:
  struct Member {
    PackedContraction contraction;
    std::unique_ptr<TileKernel> kernel;
  };

  SmallVector<Member> members;
  TileKernel *kernel = nullptr; ///< of the contraction whose tiles are written
  OpBuilder b;
  Location loc;
  int64_t tileRows;

  template <typename Body> void at(OpBuilder &nested, Body body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
    body();
  }

  static linalg::GenericOp lastOf(ArrayRef<PackedContraction> contractions) { return contractions.back().op; }

  static Location locationOf(ArrayRef<PackedContraction> contractions) {
    SmallVector<Location> locations;
    for (PackedContraction contraction : contractions)
      locations.push_back(contraction.op.getLoc());
    return FusedLoc::get(locations.front().getContext(), locations);
  }

  /// Finds the contraction that a panel of all of them belongs to, and runs `body` with its number in there.
  void dispatch(Value panel, ArrayRef<Member> candidates, function_ref<void(Value)> body) {
    kernel = candidates.front().kernel.get();
    if (candidates.size() == 1)
      return body(panel);
    Value count = panelsOf(candidates.front());
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

  Value panelsOf(const Member &member) { return size(member.contraction.c, 1); }
  void emitTile(int64_t rows, Value row, Value panel) { kernel->emit(b, loc, rows, row, panel); }

  /// Rows of one block: whole tiles whose rows of A stay in a core's second-level cache.
  int64_t blockRows() const {
    constexpr int64_t mostTiles = 32;
    int64_t bytes = members.front().kernel->rowBytes();
    if (bytes == 0)
      return 8 * tileRows;
    return std::clamp<int64_t>(rowBlockBytes / bytes / tileRows, 1, mostTiles) * tileRows;
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
      while (group && count < rest.size() && joinsGroup(rest[count], rest.take_front(count)))
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
