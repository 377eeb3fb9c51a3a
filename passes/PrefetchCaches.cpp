//===- PrefetchCaches.cpp - The KV cache is on its way before attention ---===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "DecodeAttention.h"
#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Dominance.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_PREFETCHCACHES
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::serialPositions;

namespace {

/// The operands of a call of an attention function, as docs/architecture.md has them.
struct Caches {
  Value k, v, layer, position;
  int64_t queryHeads, headDim;

  explicit Caches(func::CallOp call)
      : k(call.getOperand(1)), v(call.getOperand(2)), layer(call.getOperand(3)), position(call.getOperand(4)) {
    auto q = cast<MemRefType>(call.getOperand(0).getType());
    queryHeads = q.getDimSize(1);
    headDim = q.getDimSize(3);
  }

  MemRefType type() const { return cast<MemRefType>(k.getType()); }
  int64_t heads() const { return type().getDimSize(1); }
  int64_t elementBytes() const { return type().getElementTypeBitWidth() / 8; }
  int64_t rowBytes() const { return type().getDimSize(3) * elementBytes(); }
};

/// The last loop in front of the call whose iterations threads share.
scf::ParallelOp loopInFront(func::CallOp call) {
  for (Operation *op = call->getPrevNode(); op; op = op->getPrevNode())
    if (auto loop = dyn_cast<scf::ParallelOp>(op))
      return loop.getNumLoops() == 1 ? loop : scf::ParallelOp();
  return {};
}

/// Moves what `value` is computed from in front of `place`; false where that is not possible.
bool makeAvailable(Value value, Operation *place, DominanceInfo &dominance) {
  if (dominance.properlyDominates(value, place))
    return true;
  Operation *op = value.getDefiningOp();
  if (!op || op->getBlock() != place->getBlock() || !isPure(op) || op->getNumRegions() != 0 ||
      !llvm::all_of(op->getOperands(), [&](Value operand) { return makeAvailable(operand, place, dominance); }))
    return false;
  op->moveBefore(place);
  return true;
}

class PrefetchEmitter {
public:
  PrefetchEmitter(scf::ParallelOp loop, const Caches &caches)
      : b(OpBuilder::atBlockBegin(loop.getBody())), loc(loop.getLoc()), loop(loop), caches(caches) {}

  /// Iteration i of n fetches the part [i / n, (i + 1) / n) of the rows, of all heads one after the other: so a thread
  /// fetches about what it attends to later. Where the calling thread attends alone, its first iterations fetch all.
  void emit() {
    // A part of a second-level cache, of which the loop's own operands want the rest.
    constexpr int64_t mostBytes = 128 * 1024, callersPart = 8;
    int64_t most = std::max<int64_t>(1, mostBytes / (2 * caches.heads() * caches.rowBytes()));
    Value first = loop.getLowerBound()[0];
    Value count = arith::SubIOp::create(b, loc, loop.getUpperBound()[0], first);
    Value few = arith::CeilDivUIOp::create(b, loc, count, index(callersPart));
    Value alone = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult, caches.position,
                                        index(serialPositions(caches.queryHeads, caches.headDim)));
    count = arith::SelectOp::create(b, loc, alone, few, count);
    Value rows = arith::MinUIOp::create(b, loc, caches.position, index(most));
    Value inAll = arith::MulIOp::create(b, loc, rows, index(caches.heads()));
    auto share = [&](Value i) -> Value {
      Value taken = arith::MinUIOp::create(b, loc, i, count);
      return arith::DivUIOp::create(b, loc, arith::MulIOp::create(b, loc, taken, inAll), count);
    };
    Value number = arith::SubIOp::create(b, loc, loop.getInductionVars()[0], first);
    Value next = arith::AddIOp::create(b, loc, number, index(1));
    Value begin = share(number), end = share(next);
    scf::ForOp::create(b, loc, begin, end, index(1), ValueRange(),
                       [&](OpBuilder &nested, Location, Value row, ValueRange) {
                         b.setInsertionPointToStart(nested.getInsertionBlock());
                         Value head = arith::DivUIOp::create(b, loc, row, rows);
                         Value place = arith::RemUIOp::create(b, loc, row, rows);
                         fetchRow(caches.k, head, place);
                         fetchRow(caches.v, head, place);
                         scf::YieldOp::create(b, loc);
                       });
  }

private:
  OpBuilder b;
  Location loc;
  scf::ParallelOp loop;
  const Caches &caches;

  Value index(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }

  void fetchRow(Value cache, Value head, Value place) {
    constexpr int64_t lineBytes = 64;
    for (int64_t byte = 0; byte < caches.rowBytes(); byte += lineBytes)
      memref::PrefetchOp::create(b, loc, cache,
                                 ValueRange{caches.layer, head, place, index(byte / caches.elementBytes())},
                                 /*isWrite=*/false, /*localityHint=*/2, /*isDataCache=*/true);
  }
};

struct PrefetchCaches : buddy::impl::PrefetchCachesBase<PrefetchCaches> {
  void runOnOperation() override {
    SymbolTableCollection symbols;
    DominanceInfo dominance(getOperation());
    getOperation().walk([&](func::CallOp call) {
      auto callee = symbols.lookupNearestSymbolFrom<func::FuncOp>(call, call.getCalleeAttr());
      scf::ParallelOp loop = loopInFront(call);
      if (!callee || !callee->hasAttr("buddy.decodes") || !loop)
        return;
      Caches caches(call);
      for (Value value : {caches.k, caches.v, caches.layer, caches.position})
        if (!makeAvailable(value, loop, dominance))
          return;
      PrefetchEmitter(loop, caches).emit();
    });
    getOperation().walk([](func::FuncOp function) { function->removeAttr("buddy.decodes"); });
  }
};

} // namespace
