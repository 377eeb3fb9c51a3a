//===- PlanMemory.cpp - One arena for all buffers -------------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "TokenSizes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Bufferization/Transforms/BufferViewFlowAnalysis.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Support/MathExtras.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_PLANMEMORY
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::TokenSize;
using mlir::buddy::TokenSizes;

namespace {

/// Alignment of every buffer in bytes.
constexpr int64_t alignment = 64;

/// Bytes of the arena's two parts: one of constant size, and one of so many bytes for each token. Both are multiples of
/// the alignment, and so are all offsets in them, whatever the number of tokens.
struct Extent {
  int64_t fixed = 0;
  int64_t perToken = 0;

  bool empty() const { return fixed == 0 && perToken == 0; }
};

/// An allocation, or a call and the frame of the function that it calls.
struct Slot {
  Operation *op;
  Extent size;
  int64_t begin, end; ///< numbers of the first and the last operation at which it is in use
  Extent offset;
};

/// Chooses offsets in one part of the arena, so that slots in use at the same time are apart: the largest first, each
/// as low as possible. Returns the part's size.
int64_t place(MutableArrayRef<Slot> slots, int64_t Extent::*part) {
  SmallVector<Slot *> order;
  for (Slot &slot : slots)
    if (slot.size.*part > 0)
      order.push_back(&slot);
  llvm::stable_sort(order, [&](const Slot *x, const Slot *y) { return x->size.*part > y->size.*part; });
  SmallVector<const Slot *> placed; // by offset
  int64_t total = 0;
  for (Slot *slot : order) {
    int64_t offset = 0;
    for (const Slot *other : placed) {
      if (other->end < slot->begin || slot->end < other->begin)
        continue;
      if (other->offset.*part >= offset + slot->size.*part)
        break;
      offset = std::max(offset, other->offset.*part + other->size.*part);
    }
    slot->offset.*part = offset;
    total = std::max(total, offset + slot->size.*part);
    placed.insert(llvm::upper_bound(placed, slot,
                                    [&](const Slot *x, const Slot *y) { return x->offset.*part < y->offset.*part; }),
                  slot);
  }
  return total;
}

/// Numbers of a function's operations in the order of the text; a loop's numbers enclose those of its body.
class Numbering {
public:
  explicit Numbering(func::FuncOp function) {
    function->walk<WalkOrder::PreOrder>([&](Operation *op) { first[op] = count++; });
    function->walk<WalkOrder::PostOrder>([&](Operation *op) {
      int64_t &own = last[op];
      own = std::max(own, first[op]);
      if (Operation *parent = op->getParentOp())
        last[parent] = std::max(last[parent], own);
    });
  }
  int64_t firstOf(Operation *op) const { return first.lookup(op); }
  int64_t lastOf(Operation *op) const { return last.lookup(op); }

private:
  int64_t count = 1;
  DenseMap<Operation *, int64_t> first, last;
};

bool isConcurrent(Operation *op) {
  return op->getParentOfType<scf::ParallelOp>() || op->getParentOfType<scf::ForallOp>();
}

/// Whether a function is an entry point of docs/architecture.md.
bool isEntry(func::FuncOp function) {
  auto entry = function->getAttrOfType<StringAttr>("buddy.entry");
  return function.isPublic() && !function.isExternal() && entry &&
         llvm::is_contained({"prefill", "decode", "score"}, entry.getValue());
}

class MemoryPlanner {
public:
  MemoryPlanner(ModuleOp module, bool place) : module(module), symbols(module), sizes(module), places(place) {
    module.walk([&](func::CallOp call) {
      if (auto callee = symbols.lookup<func::FuncOp>(call.getCallee()))
        callers[callee].push_back(call);
    });
  }

  LogicalResult run() {
    SmallVector<func::FuncOp> entries;
    for (auto function : module.getOps<func::FuncOp>()) {
      if (!isEntry(function))
        continue;
      if (failed(checkEntry(function)))
        return failure();
      entries.push_back(function);
    }
    if (places) {
      findExcluded();
      for (func::FuncOp entry : entries)
        planFunction(entry);
    }
    for (auto &[function, plan] : plans)
      if (!isEntry(function))
        rewritePrivate(function);
    for (func::FuncOp entry : entries)
      rewriteEntry(entry);
    return success();
  }

private:
  struct Plan {
    SmallVector<Slot> slots;
    Extent size;
  };
  /// What a function is given to place its buffers in; null where it needs none.
  struct Arena {
    Value fixed, perToken, tokens;
  };

  ModuleOp module;
  SymbolTable symbols;
  TokenSizes sizes;
  bool places;
  DenseMap<func::FuncOp, SmallVector<func::CallOp>> callers;
  DenseSet<func::FuncOp> excluded; ///< functions that keep their allocations
  llvm::MapVector<func::FuncOp, Plan> plans;

  LogicalResult checkEntry(func::FuncOp function) {
    auto ids = function.getNumArguments() > 1 ? dyn_cast<MemRefType>(function.getArgumentTypes()[1]) : MemRefType();
    if (!ids || ids.getRank() != 2)
      return emitError(function.getLoc()) << "entry point '" << function.getName()
                                          << "' must take the ids, a buffer of rank 2, as its second argument";
    if (symbols.lookup((function.getName() + "_arena_size").str()))
      return emitError(function.getLoc())
             << "the name '" << function.getName() << "_arena_size' is taken; it is meant for the size of the arena";
    return success();
  }

  /// A function that other public functions reach, or several threads at once, or itself, has no place of its own.
  void findExcluded() {
    SmallVector<func::FuncOp> work;
    for (auto function : module.getOps<func::FuncOp>()) {
      bool concurrent = llvm::any_of(callers[function], [](func::CallOp call) { return isConcurrent(call); });
      if (concurrent || (function.isPublic() && !isEntry(function)) ||
          (isEntry(function) && !callers[function].empty()) || reaches(function, function))
        work.push_back(function);
    }
    while (!work.empty()) {
      func::FuncOp function = work.pop_back_val();
      if (!excluded.insert(function).second)
        continue;
      function.walk([&](func::CallOp call) {
        if (auto callee = symbols.lookup<func::FuncOp>(call.getCallee()))
          work.push_back(callee);
      });
    }
  }

  bool reaches(func::FuncOp from, func::FuncOp to) {
    SmallVector<func::FuncOp> work = {from};
    DenseSet<func::FuncOp> seen;
    while (!work.empty()) {
      func::FuncOp function = work.pop_back_val();
      WalkResult result = function.walk([&](func::CallOp call) {
        auto callee = symbols.lookup<func::FuncOp>(call.getCallee());
        if (callee == to)
          return WalkResult::interrupt();
        if (callee && seen.insert(callee).second)
          work.push_back(callee);
        return WalkResult::advance();
      });
      if (result.wasInterrupted())
        return true;
    }
    return false;
  }

  //===--------------------------------------------------------------------===//
  // Planning
  //===--------------------------------------------------------------------===//

  /// Plans the functions that `function` calls, then itself.
  Extent planFunction(func::FuncOp function) {
    if (function.isExternal() || excluded.contains(function))
      return {};
    if (auto found = plans.find(function); found != plans.end())
      return found->second.size;
    Plan plan;
    Numbering numbers(function);
    BufferViewFlowAnalysis views(function);
    function.walk([&](Operation *op) {
      if (auto call = dyn_cast<func::CallOp>(op)) {
        auto callee = symbols.lookup<func::FuncOp>(call.getCallee());
        Extent frame = callee ? planFunction(callee) : Extent();
        if (!frame.empty())
          plan.slots.push_back({op, frame, numbers.firstOf(op), numbers.lastOf(op), {}});
      } else if (auto allocation = dyn_cast<memref::AllocOp>(op)) {
        addAllocation(plan, allocation, numbers, views);
      }
    });
    plan.size.fixed = place(plan.slots, &Extent::fixed);
    plan.size.perToken = place(plan.slots, &Extent::perToken);
    Extent size = plan.size;
    plans.insert({function, std::move(plan)});
    return size;
  }

  void addAllocation(Plan &plan, memref::AllocOp allocation, const Numbering &numbers, BufferViewFlowAnalysis &views) {
    std::optional<TokenSize> bytes = sizes.bytesOf(allocation);
    if (!bytes || isConcurrent(allocation))
      return;
    Slot slot{allocation, {}, std::numeric_limits<int64_t>::max(), 0, {}};
    Block *block = allocation->getBlock();
    for (Value alias : views.resolve(allocation))
      for (Operation *user : alias.getUsers()) {
        Operation *inBlock = block->findAncestorOpInBlock(*user);
        if (!inBlock || inBlock == block->getTerminator())
          return; // it outlives its block
        slot.begin = std::min(slot.begin, numbers.firstOf(inBlock));
        slot.end = std::max(slot.end, numbers.lastOf(inBlock));
      }
    // There is at least one token, so that a constant can be counted once for each.
    if (bytes->perToken > 0)
      slot.size.perToken = llvm::alignTo(bytes->perToken + std::max<int64_t>(bytes->constant, 0), alignment);
    else
      slot.size.fixed = llvm::alignTo(std::max<int64_t>(bytes->constant, 1), alignment);
    plan.slots.push_back(slot);
  }

  //===--------------------------------------------------------------------===//
  // Rewriting
  //===--------------------------------------------------------------------===//

  static MemRefType bytesType(MLIRContext *context) {
    return MemRefType::get({ShapedType::kDynamic}, IntegerType::get(context, 8));
  }

  void rewritePrivate(func::FuncOp function) {
    Plan &plan = plans.find(function)->second;
    Arena arena;
    Location loc = function.getLoc();
    auto append = [&](Type type) {
      (void)function.insertArgument(function.getNumArguments(), type, {}, loc);
      return function.getArguments().back();
    };
    if (plan.size.fixed > 0)
      arena.fixed = append(bytesType(function.getContext()));
    if (plan.size.perToken > 0) {
      arena.perToken = append(bytesType(function.getContext()));
      arena.tokens = append(IndexType::get(function.getContext()));
    }
    useSlots(plan, arena);
  }

  void rewriteEntry(func::FuncOp function) {
    Plan &plan = plans[function];
    MLIRContext *context = function.getContext();
    Location loc = function.getLoc();
    (void)function.insertArgument(function.getNumArguments(), bytesType(context), {}, loc);
    Arena arena;
    arena.fixed = function.getArguments().back();
    OpBuilder b(function.getBody());
    if (plan.size.perToken > 0) {
      Value one = arith::ConstantIndexOp::create(b, loc, 1);
      arena.tokens = b.createOrFold<memref::DimOp>(loc, function.getArgument(1), one);
      Value offset = arith::ConstantIndexOp::create(b, loc, plan.size.fixed);
      Value length = arith::ConstantIndexOp::create(b, loc, plan.size.perToken);
      length = arith::MulIOp::create(b, loc, length, arena.tokens);
      arena.perToken = memref::ViewOp::create(b, loc, bytesType(context), arena.fixed, offset, length);
    }
    useSlots(plan, arena);
    defineArenaSize(function, plan.size);
  }

  /// The views that stand for one slot: a buffer, or the two parts of a frame.
  void useSlots(Plan &plan, const Arena &arena) {
    for (Slot &slot : plan.slots) {
      OpBuilder b(slot.op);
      Location loc = slot.op->getLoc();
      auto constant = [&](int64_t value) { return arith::ConstantIndexOp::create(b, loc, value).getResult(); };
      auto timesTokens = [&](int64_t value) {
        return value == 0 ? constant(0) : arith::MulIOp::create(b, loc, constant(value), arena.tokens).getResult();
      };
      if (auto allocation = dyn_cast<memref::AllocOp>(slot.op)) {
        bool grows = slot.size.perToken > 0;
        Value offset = grows ? timesTokens(slot.offset.perToken) : constant(slot.offset.fixed);
        Value view = memref::ViewOp::create(b, loc, allocation.getType(), grows ? arena.perToken : arena.fixed, offset,
                                            allocation.getDynamicSizes());
        for (Operation *user : llvm::make_early_inc_range(allocation->getUsers()))
          if (isa<memref::DeallocOp>(user))
            user->erase();
        allocation.replaceAllUsesWith(view);
        allocation.erase();
        continue;
      }
      SmallVector<Value> frame;
      if (slot.size.fixed > 0)
        frame.push_back(memref::ViewOp::create(b, loc, bytesType(b.getContext()), arena.fixed,
                                               constant(slot.offset.fixed), constant(slot.size.fixed)));
      if (slot.size.perToken > 0) {
        frame.push_back(memref::ViewOp::create(b, loc, bytesType(b.getContext()), arena.perToken,
                                               timesTokens(slot.offset.perToken), timesTokens(slot.size.perToken)));
        frame.push_back(arena.tokens);
      }
      slot.op->insertOperands(slot.op->getNumOperands(), frame);
    }
  }

  /// `@<entry>_arena_size(tokens) -> bytes`, for the caller.
  void defineArenaSize(func::FuncOp entry, const Extent &size) {
    OpBuilder b(entry);
    b.setInsertionPointAfter(entry);
    Location loc = entry.getLoc();
    Type i64 = b.getI64Type();
    auto function = func::FuncOp::create(b, loc, (entry.getName() + "_arena_size").str(), b.getFunctionType(i64, i64));
    function->setAttr("llvm.emit_c_interface", b.getUnitAttr());
    b.setInsertionPointToStart(function.addEntryBlock());
    Value perToken = arith::ConstantIntOp::create(b, loc, size.perToken, 64);
    Value fixed = arith::ConstantIntOp::create(b, loc, size.fixed, 64);
    Value growing = arith::MulIOp::create(b, loc, perToken, function.getArgument(0));
    Value bytes = arith::AddIOp::create(b, loc, growing, fixed);
    func::ReturnOp::create(b, loc, bytes);
  }
};

struct PlanMemory : buddy::impl::PlanMemoryBase<PlanMemory> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(MemoryPlanner(getOperation(), place).run()))
      signalPassFailure();
  }
};

} // namespace
