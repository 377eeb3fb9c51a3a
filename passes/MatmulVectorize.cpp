//===- MatmulVectorize.cpp - Register tiles for packed contractions -------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "TileKernel.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
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
      member.kernel->prepare(b, member.contraction.op.getLoc());
    int64_t staticRows = members.front().contraction.staticRows();
    Value panels = panelsOf(members.front());
    for (const Member &member : llvm::drop_begin(members))
      panels = b.createOrFold<arith::AddIOp>(loc, panels, panelsOf(member));
    if (staticRows == 1) {
      scf::ParallelOp::create(b, loc, ValueRange{constant(0)}, ValueRange{panels}, ValueRange{constant(1)},
                              [&](OpBuilder &nested, Location, ValueRange ivs) {
                                at(nested, [&] {
                                  dispatch(ivs[0], members, [&](Value panel) {
                                    kernel->emit(b, loc, 1, constant(0), panel, /*isPrepared=*/false);
                                  });
                                });
                              });
      return;
    }
    // Blocks of rows outside, panels inside: a block of A stays in cache while a thread goes through the panels. Blocks
    // are of equal size, so that threads get equal shares.
    Value rows = size(members.front().contraction.c, 0);
    Value blocks = b.createOrFold<arith::CeilDivUIOp>(loc, rows, constant(mostBlockRows()));
    Value blockRows = b.createOrFold<arith::CeilDivUIOp>(loc, rows, blocks);
    scf::ParallelOp::create(b, loc, ValueRange{constant(0), constant(0)}, ValueRange{blocks, panels},
                            ValueRange{constant(1), constant(1)}, [&](OpBuilder &nested, Location, ValueRange ivs) {
                              at(nested, [&] {
                                Value begin = multiply(ivs[0], blockRows);
                                Value end = minimum(rows, sum(begin, blockRows));
                                Value scratch = allocateScratch();
                                dispatch(ivs[1], members,
                                         [&](Value panel) { emitRowBlock(begin, end, panel, scratch); });
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

  /// The locations of all, and in the metadata, for a profile, the bytes of their weights and the operations per row.
  static Location locationOf(ArrayRef<PackedContraction> contractions) {
    SmallVector<Location> locations;
    int64_t bytes = 0, operations = 0;
    for (PackedContraction contraction : contractions) {
      locations.push_back(contraction.op.getLoc());
      bytes += weightBytes(contraction.op);
      operations += operationsPerRow(contraction.op);
    }
    MLIRContext *context = locations.front().getContext();
    return FusedLoc::get(context, locations, DenseI64ArrayAttr::get(context, {bytes, operations}));
  }

  /// Bytes of the inputs that a contraction reads for each panel, as far as their sizes are known.
  static int64_t weightBytes(linalg::GenericOp op) {
    AffineExpr panel = op.getIndexingMapsArray().back().getResult(1);
    int64_t bytes = 0;
    for (OpOperand *input : op.getDpsInputOperands())
      if (auto type = cast<MemRefType>(input->get().getType());
          type.hasStaticShape() && llvm::is_contained(op.getMatchingIndexingMap(input).getResults(), panel))
        bytes += type.getNumElements() * type.getElementTypeBitWidth() / 8;
    return bytes;
  }

  /// Multiplications and additions for one row of C; 0 where a size is not known.
  static int64_t operationsPerRow(linalg::GenericOp op) {
    auto row = cast<AffineDimExpr>(op.getIndexingMapsArray().back().getResult(0));
    int64_t operations = 2;
    for (auto [loop, extent] : llvm::enumerate(op.getStaticLoopRanges()))
      if (loop != row.getPosition())
        operations *= ShapedType::isDynamic(extent) ? 0 : extent;
    return operations;
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
  Value sum(Value lhs, Value rhs) { return b.createOrFold<arith::AddIOp>(loc, lhs, rhs); }
  Value difference(Value lhs, Value rhs) { return b.createOrFold<arith::SubIOp>(loc, lhs, rhs); }
  Value multiply(Value lhs, Value rhs) { return b.createOrFold<arith::MulIOp>(loc, lhs, rhs); }
  Value minimum(Value lhs, Value rhs) { return b.createOrFold<arith::MinUIOp>(loc, lhs, rhs); }
  Value isGreater(Value lhs, Value rhs) {
    return b.createOrFold<arith::CmpIOp>(loc, arith::CmpIPredicate::ugt, lhs, rhs);
  }
  Value size(Value buffer, int64_t dim) { return b.createOrFold<memref::DimOp>(loc, buffer, dim); }

  Value panelsOf(const Member &member) { return size(member.contraction.c, 1); }

  /// With fewer full tiles than this, what is prepared for a panel costs more than it saves.
  static constexpr int64_t leastPreparedTiles = 4;

  /// Memory of a thread's own for preparing panels; null for none.
  Value allocateScratch() {
    int64_t rows = members.front().contraction.staticRows();
    if (!ShapedType::isDynamic(rows) && rows < leastPreparedTiles * tileRows)
      return {};
    int64_t bytes = 0;
    for (const Member &member : members)
      bytes = std::max(bytes, member.kernel->scratchBytes());
    if (bytes == 0)
      return {};
    return memref::AllocaOp::create(b, loc, MemRefType::get({bytes}, b.getI8Type()), b.getI64IntegerAttr(64));
  }

  /// The most rows of a block. Its rows of A should stay in a core's second-level cache while the panels go by; but a
  /// panel is read from farther away, and has to serve enough tiles to be worth it.
  int64_t mostBlockRows() const {
    constexpr int64_t blockBytes = 256 * 1024, leastTiles = 12, mostTiles = 32;
    int64_t bytes = std::max<int64_t>(1, members.front().kernel->rowBytes());
    return std::clamp<int64_t>(blockBytes / bytes / tileRows, leastTiles, mostTiles) * tileRows;
  }

  /// The rows [begin, end) against one panel: full tiles, then smaller ones, in powers of two. Where a tile would stand
  /// out over the end by less than half it is moved up, and computes some rows for the second time.
  void emitRowBlock(Value begin, Value end, Value panel, Value scratch) {
    Value count = difference(end, minimum(begin, end));
    Value shift = fetchShift(count);
    bool mayRepeat = members.front().contraction.zeroFill != nullptr;
    Value position = begin, tiles = constant(0), rest = count;
    for (int64_t part = tileRows; part >= 1; part = llvm::bit_floor<uint64_t>(part - 1)) {
      int64_t next = llvm::bit_floor<uint64_t>(part - 1);
      Value size = constant(part);
      Value number = b.createOrFold<arith::DivUIOp>(loc, rest, size);
      if (mayRepeat) {
        Value left = b.createOrFold<arith::RemUIOp>(loc, rest, size);
        Value more =
            b.createOrFold<arith::AndIOp>(loc, isGreater(left, constant(next)), isGreater(count, constant(part - 1)));
        number = sum(number, b.createOrFold<arith::IndexCastUIOp>(loc, b.getIndexType(), more));
      }
      auto emitTiles = [&](bool isPrepared) {
        scf::ForOp::create(b, loc, constant(0), number, constant(1), ValueRange(),
                           [&](OpBuilder &nested, Location, Value i, ValueRange) {
                             at(nested, [&] {
                               Value row = sum(position, multiply(i, size));
                               if (mayRepeat)
                                 row = minimum(row, difference(end, size));
                               kernel->fetchAhead(sum(tiles, i), shift);
                               kernel->emit(b, loc, part, row, panel, isPrepared);
                             });
                             scf::YieldOp::create(nested, loc);
                           });
      };
      if (part == tileRows && scratch && kernel->scratchBytes() != 0) {
        auto choice =
            scf::IfOp::create(b, loc, isGreater(number, constant(leastPreparedTiles - 1)), /*withElseRegion=*/true);
        OpBuilder::InsertionGuard guard(b);
        b.setInsertionPointToStart(choice.thenBlock());
        kernel->preparePanel(b, loc, panel, scratch);
        emitTiles(/*isPrepared=*/true);
        b.setInsertionPointToStart(choice.elseBlock());
        emitTiles(/*isPrepared=*/false);
      } else {
        emitTiles(/*isPrepared=*/false);
      }
      if (part == 1)
        break;
      Value taken = multiply(number, size);
      position = sum(position, taken);
      tiles = sum(tiles, number);
      rest = difference(rest, minimum(taken, rest));
    }
  }

  /// The logarithm of the number of full tiles in `count` rows, rounded down, and at most 4.
  Value fetchShift(Value count) {
    Value shift = constant(0);
    for (int64_t tiles = 2; tiles <= 16; tiles *= 2)
      shift = sum(shift, b.createOrFold<arith::IndexCastUIOp>(loc, b.getIndexType(),
                                                              isGreater(count, constant(tiles * tileRows - 1))));
    return shift;
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
