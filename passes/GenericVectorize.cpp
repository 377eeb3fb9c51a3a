//===- GenericVectorize.cpp - Loops of vectors for linalg ops -------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"
#include "Target.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/IRMapping.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_GENERICVECTORIZE
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::Target;

namespace {

/// Work (iterations) below which a loop nest of static extent stays on one thread.
constexpr int64_t serialIterations = 32 * 1024;

/// Functions of the math dialect that VectorMathApproximation or the hardware does well on vectors. The rest (sine and
/// cosine of positions above all) stay scalar calls to libm, which are right for any argument.
bool hasVectorForm(Operation *op) {
  if (!isa<math::MathDialect>(op->getDialect()))
    return true;
  return isa<math::AbsFOp, math::AbsIOp, math::CeilOp, math::FloorOp, math::RoundEvenOp, math::TruncOp, math::FmaOp,
             math::CopySignOp, math::SqrtOp, math::RsqrtOp, math::ExpOp, math::TanhOp, math::LogOp, math::ErfOp>(op);
}

std::optional<vector::CombiningKind> combiningKind(Operation *op) {
  using Kind = vector::CombiningKind;
  return llvm::TypeSwitch<Operation *, std::optional<Kind>>(op)
      .Case<arith::AddFOp, arith::AddIOp>([](auto) { return Kind::ADD; })
      .Case<arith::MulFOp, arith::MulIOp>([](auto) { return Kind::MUL; })
      .Case<arith::MaximumFOp>([](auto) { return Kind::MAXIMUMF; })
      .Case<arith::MinimumFOp>([](auto) { return Kind::MINIMUMF; })
      .Case<arith::MaxNumFOp>([](auto) { return Kind::MAXNUMF; })
      .Case<arith::MinNumFOp>([](auto) { return Kind::MINNUMF; })
      .Case<arith::MaxSIOp>([](auto) { return Kind::MAXSI; })
      .Case<arith::MinSIOp>([](auto) { return Kind::MINSI; })
      .Case<arith::MaxUIOp>([](auto) { return Kind::MAXUI; })
      .Case<arith::MinUIOp>([](auto) { return Kind::MINUI; })
      .Case<arith::AndIOp>([](auto) { return Kind::AND; })
      .Case<arith::OrIOp>([](auto) { return Kind::OR; })
      .Case<arith::XOrIOp>([](auto) { return Kind::XOR; })
      .Default(std::nullopt);
}

/// How one output of a reduction is combined: `yielded = combiner(out, value)`.
struct Combiner {
  Operation *op;
  Value value;
  vector::CombiningKind kind;
};

/// The plan for one linalg op: which loop runs in vectors.
struct Plan {
  int vectorLoop = -1;  ///< -1: none, scalar loops
  bool reduces = false; ///< the vector loop is a reduction
  int64_t lanes = 1;
  SmallVector<Combiner> combiners; ///< one per output when `reduces`
  DenseSet<Operation *> varying;   ///< ops of the body that differ from lane to lane
};

class Planner {
public:
  Planner(linalg::LinalgOp op, const Target &target) : op(op), target(target) {}

  Plan plan() {
    SmallVector<int64_t> extents = op.getStaticLoopRanges();
    SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
    // The output's innermost dimension first: stores are dearer than loads.
    SmallVector<int> order;
    for (int loop = op.getNumLoops() - 1; loop >= 0; --loop)
      if (iterators[loop] == utils::IteratorType::parallel)
        order.push_back(loop);
    for (int loop = op.getNumLoops() - 1; loop >= 0; --loop)
      if (iterators[loop] == utils::IteratorType::reduction)
        order.push_back(loop);
    for (int loop : order) {
      Plan candidate;
      candidate.vectorLoop = loop;
      candidate.reduces = iterators[loop] == utils::IteratorType::reduction;
      candidate.lanes = lanesFor(extents[loop]);
      if (candidate.lanes > 1 && operandsAllow(candidate) && bodyAllows(candidate))
        return candidate;
    }
    return {};
  }

private:
  linalg::LinalgOp op;
  const Target &target;

  int64_t lanesFor(int64_t extent) {
    int64_t lanes = 0;
    for (OpOperand &operand : op->getOpOperands()) {
      Type element = getElementTypeOrSelf(operand.get().getType());
      if (!VectorType::isValidElementType(element))
        return 1;
      int64_t own = element.isInteger(1) ? target.lanes(IntegerType::get(op.getContext(), 8)) : target.lanes(element);
      lanes = lanes == 0 ? own : std::min(lanes, own);
    }
    lanes = std::max<int64_t>(lanes, 1);
    if (ShapedType::isDynamic(extent))
      return lanes;
    return std::min<int64_t>(lanes, llvm::bit_floor<uint64_t>(std::max<int64_t>(extent, 1)));
  }

  bool operandsAllow(const Plan &plan) {
    for (OpOperand &operand : op->getOpOperands()) {
      AffineMap map = op.getMatchingIndexingMap(&operand);
      bool isOutput = op.isDpsInit(&operand);
      if (!map.isFunctionOfDim(plan.vectorLoop)) {
        if (isOutput && !plan.reduces)
          return false;
        continue;
      }
      if (isOutput && plan.reduces)
        return false;
      auto type = dyn_cast<MemRefType>(operand.get().getType());
      SmallVector<int64_t> strides;
      int64_t offset;
      if (!type || failed(type.getStridesAndOffset(strides, offset)) || strides.empty() || strides.back() != 1)
        return false;
      auto last = dyn_cast<AffineDimExpr>(map.getResults().back());
      if (!last || static_cast<int>(last.getPosition()) != plan.vectorLoop)
        return false;
      if (llvm::any_of(map.getResults().drop_back(),
                       [&](AffineExpr expr) { return expr.isFunctionOfDim(plan.vectorLoop); }))
        return false;
    }
    return true;
  }

  bool bodyAllows(Plan &plan) {
    Block *body = op.getBlock();
    if (plan.reduces && !findCombiners(plan))
      return false;
    DenseSet<Value> varying;
    for (OpOperand &operand : op->getOpOperands())
      if (op.getMatchingIndexingMap(&operand).isFunctionOfDim(plan.vectorLoop))
        varying.insert(op.getMatchingBlockArgument(&operand));
    for (Operation &nested : body->without_terminator()) {
      bool differs = llvm::any_of(nested.getOperands(), [&](Value value) { return varying.contains(value); });
      if (auto index = dyn_cast<linalg::IndexOp>(nested))
        differs = static_cast<int>(index.getDim()) == plan.vectorLoop;
      bool combines = llvm::any_of(plan.combiners, [&](const Combiner &combiner) { return combiner.op == &nested; });
      if (!differs) {
        if (nested.getNumRegions() != 0 || (!combines && !isMemoryReadOrPure(&nested)))
          return false;
        continue;
      }
      if (!isa<linalg::IndexOp>(nested) && (!OpTrait::hasElementwiseMappableTraits(&nested) || !hasVectorForm(&nested)))
        return false;
      if (llvm::any_of(nested.getResultTypes(), [](Type type) { return !VectorType::isValidElementType(type); }))
        return false;
      plan.varying.insert(&nested);
      varying.insert(nested.result_begin(), nested.result_end());
    }
    return true;
  }

  static bool isMemoryReadOrPure(Operation *nested) { return isPure(nested) || isa<memref::LoadOp>(nested); }

  bool findCombiners(Plan &plan) {
    Operation *yield = op.getBlock()->getTerminator();
    for (OpOperand &init : op.getDpsInitsMutable()) {
      BlockArgument out = op.getMatchingBlockArgument(&init);
      unsigned number = plan.combiners.size();
      Operation *combiner = yield->getOperand(number).getDefiningOp();
      if (!combiner || combiner->getBlock() != op.getBlock() || combiner->getNumOperands() != 2 || !out.hasOneUse() ||
          *out.getUsers().begin() != combiner || !combiner->hasOneUse())
        return false;
      std::optional<vector::CombiningKind> kind = combiningKind(combiner);
      if (!kind || !arith::getNeutralElement(combiner))
        return false;
      Value value = combiner->getOperand(0) == out ? combiner->getOperand(1) : combiner->getOperand(0);
      plan.combiners.push_back({combiner, value, *kind});
    }
    return true;
  }
};

/// Writes the loop nest of one linalg op.
class NestEmitter {
public:
  NestEmitter(linalg::LinalgOp op, Plan plan) : op(op), plan(std::move(plan)), b(op), loc(op.getLoc()) {}

  void emit() {
    for (const Range &range : op.createLoopRanges(b, loc))
      sizes.push_back(getValueOrCreateConstantIndexOp(b, loc, range.size));
    ivs.resize(sizes.size());
    SmallVector<utils::IteratorType> iterators = op.getIteratorTypesArray();
    SmallVector<unsigned> parallel, reductions;
    for (unsigned loop = 0; loop < sizes.size(); ++loop)
      if (static_cast<int>(loop) != plan.vectorLoop)
        (iterators[loop] == utils::IteratorType::parallel ? parallel : reductions).push_back(loop);
    emitParallel(parallel, reductions);
  }

private:
  linalg::LinalgOp op;
  Plan plan;
  OpBuilder b;
  Location loc;
  SmallVector<Value> sizes, ivs;

  Value constant(int64_t value) { return arith::ConstantIndexOp::create(b, loc, value); }

  template <typename Body> void at(OpBuilder &nested, Body body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
    body();
  }

  bool isWorthThreads() {
    if (op->getParentOfType<scf::ParallelOp>())
      return false;
    int64_t work = 1;
    for (int64_t extent : op.getStaticLoopRanges()) {
      if (ShapedType::isDynamic(extent))
        return true;
      work *= extent;
    }
    return work >= serialIterations;
  }

  void emitParallel(ArrayRef<unsigned> parallel, ArrayRef<unsigned> reductions) {
    SmallVector<int64_t> extents = op.getStaticLoopRanges();
    SmallVector<unsigned> loops;
    for (unsigned loop : parallel) {
      if (extents[loop] == 1)
        ivs[loop] = constant(0);
      else
        loops.push_back(loop);
    }
    if (loops.empty() || !isWorthThreads())
      return emitSerial(loops, reductions);
    SmallVector<Value> lower(loops.size(), constant(0)), upper, step(loops.size(), constant(1));
    for (unsigned loop : loops)
      upper.push_back(sizes[loop]);
    scf::ParallelOp::create(b, loc, lower, upper, step, [&](OpBuilder &nested, Location, ValueRange values) {
      for (auto [loop, value] : llvm::zip_equal(loops, values))
        ivs[loop] = value;
      at(nested, [&] { emitSerial({}, reductions); });
    });
  }

  void emitSerial(ArrayRef<unsigned> parallel, ArrayRef<unsigned> reductions) {
    if (parallel.empty() && reductions.empty())
      return emitInnermost();
    ArrayRef<unsigned> &loops = parallel.empty() ? reductions : parallel;
    unsigned loop = loops.front();
    loops = loops.drop_front();
    scf::ForOp::create(b, loc, constant(0), sizes[loop], constant(1), ValueRange(),
                       [&](OpBuilder &nested, Location, Value iv, ValueRange) {
                         ivs[loop] = iv;
                         at(nested, [&] { emitSerial(parallel, reductions); });
                         scf::YieldOp::create(nested, loc);
                       });
  }

  void emitInnermost() {
    IRMapping uniform = emitUniform();
    if (plan.vectorLoop < 0)
      return storeOutputs(uniform, 1);
    if (plan.reduces)
      return emitReduction(uniform);
    splitVectorLoop([&](Value iv, int64_t lanes) {
      ivs[plan.vectorLoop] = iv;
      IRMapping mapping = uniform;
      emitVarying(mapping, lanes);
      storeOutputs(mapping, lanes);
    });
  }

  /// Calls `body` for the vector loop: a loop of full vectors, then narrower vectors (static extent) or scalars.
  void splitVectorLoop(function_ref<void(Value, int64_t)> body) {
    Value size = sizes[plan.vectorLoop];
    int64_t extent = op.getStaticLoopRanges()[plan.vectorLoop];
    bool isStatic = !ShapedType::isDynamic(extent);
    Value end = size;
    if (isStatic)
      end = constant(extent - extent % plan.lanes);
    else
      end = arith::SubIOp::create(b, loc, size, arith::RemUIOp::create(b, loc, size, constant(plan.lanes)));
    loop(constant(0), end, plan.lanes, [&](Value iv) { body(iv, plan.lanes); });
    if (!isStatic)
      return loop(end, size, 1, [&](Value iv) { body(iv, 1); });
    int64_t offset = extent - extent % plan.lanes;
    for (int64_t lanes = plan.lanes / 2; lanes >= 1; lanes /= 2)
      if ((extent - offset) & lanes) {
        body(constant(offset), lanes);
        offset += lanes;
      }
  }

  void loop(Value from, Value to, int64_t step, function_ref<void(Value)> body) {
    scf::ForOp::create(b, loc, from, to, constant(step), ValueRange(),
                       [&](OpBuilder &nested, Location, Value iv, ValueRange) {
                         at(nested, [&] { body(iv); });
                         scf::YieldOp::create(nested, loc);
                       });
  }

  bool varies(OpOperand &operand) {
    return plan.vectorLoop >= 0 && op.getMatchingIndexingMap(&operand).isFunctionOfDim(plan.vectorLoop);
  }

  bool isCombiner(Operation *nested) {
    return llvm::any_of(plan.combiners, [&](const Combiner &combiner) { return combiner.op == nested; });
  }

  SmallVector<Value> indicesOf(OpOperand &operand) {
    SmallVector<Value> indices;
    AffineMap map = op.getMatchingIndexingMap(&operand);
    for (AffineExpr expr : map.getResults()) {
      if (auto dim = dyn_cast<AffineDimExpr>(expr)) {
        indices.push_back(ivs[dim.getPosition()]);
        continue;
      }
      if (auto value = dyn_cast<AffineConstantExpr>(expr)) {
        indices.push_back(constant(value.getValue()));
        continue;
      }
      // Unused loops of a compound expression may not have a value yet (the vector loop): they are not read.
      SmallVector<Value> dims(ivs);
      for (Value &dim : dims)
        if (!dim)
          dim = constant(0);
      indices.push_back(
          affine::makeComposedAffineApply(b, loc, AffineMap::get(map.getNumDims(), 0, expr), getAsOpFoldResult(dims))
              .getResult());
    }
    return indices;
  }

  Value load(OpOperand &operand, int64_t lanes) {
    auto type = dyn_cast<MemRefType>(operand.get().getType());
    if (!type)
      return operand.get();
    SmallVector<Value> indices = indicesOf(operand);
    if (lanes == 1)
      return memref::LoadOp::create(b, loc, operand.get(), indices);
    return vector::LoadOp::create(b, loc, VectorType::get(lanes, type.getElementType()), operand.get(), indices);
  }

  /// Loads and computes, once, what is the same for the whole of the vector loop.
  IRMapping emitUniform() {
    IRMapping mapping;
    for (OpOperand &operand : op->getOpOperands()) {
      BlockArgument argument = op.getMatchingBlockArgument(&operand);
      if (!varies(operand) && !argument.use_empty())
        mapping.map(argument, load(operand, 1));
    }
    for (Operation &nested : op.getBlock()->without_terminator())
      if (!plan.varying.contains(&nested) && !isCombiner(&nested))
        cloneScalar(nested, mapping);
    return mapping;
  }

  void cloneScalar(Operation &nested, IRMapping &mapping) {
    if (auto index = dyn_cast<linalg::IndexOp>(nested))
      mapping.map(index.getResult(), ivs[index.getDim()]);
    else
      b.clone(nested, mapping);
  }

  Value broadcast(Value value, int64_t lanes) {
    if (lanes == 1 || isa<VectorType>(value.getType()))
      return value;
    return vector::BroadcastOp::create(b, loc, VectorType::get(lanes, value.getType()), value);
  }

  /// Loads and computes what differs from lane to lane, `lanes` at a time.
  void emitVarying(IRMapping &mapping, int64_t lanes) {
    for (OpOperand &operand : op->getOpOperands()) {
      BlockArgument argument = op.getMatchingBlockArgument(&operand);
      if (varies(operand) && !argument.use_empty())
        mapping.map(argument, load(operand, lanes));
    }
    for (Operation &nested : op.getBlock()->without_terminator()) {
      if (!plan.varying.contains(&nested) || isCombiner(&nested))
        continue;
      if (lanes == 1)
        cloneScalar(nested, mapping);
      else
        cloneVector(nested, mapping, lanes);
    }
  }

  void cloneVector(Operation &nested, IRMapping &mapping, int64_t lanes) {
    if (auto index = dyn_cast<linalg::IndexOp>(nested)) {
      Value steps = vector::StepOp::create(b, loc, VectorType::get(lanes, b.getIndexType()));
      Value start = broadcast(ivs[index.getDim()], lanes);
      mapping.map(index.getResult(), arith::AddIOp::create(b, loc, start, steps).getResult());
      return;
    }
    SmallVector<Value> operands;
    for (Value operand : nested.getOperands())
      operands.push_back(broadcast(mapping.lookupOrDefault(operand), lanes));
    SmallVector<Type> types;
    for (Type type : nested.getResultTypes())
      types.push_back(VectorType::get(lanes, type));
    Operation *vectorOp = b.create(loc, nested.getName().getIdentifier(), operands, types, nested.getAttrs());
    mapping.map(nested.getResults(), vectorOp->getResults());
  }

  void storeOutputs(IRMapping &mapping, int64_t lanes) {
    Operation *yield = op.getBlock()->getTerminator();
    for (auto [number, init] : llvm::enumerate(op.getDpsInitsMutable())) {
      Value value = broadcast(mapping.lookupOrDefault(yield->getOperand(number)), lanes);
      SmallVector<Value> indices = indicesOf(init);
      if (lanes == 1)
        memref::StoreOp::create(b, loc, value, init.get(), indices);
      else
        vector::StoreOp::create(b, loc, value, init.get(), indices);
    }
  }

  /// combiner(lhs, rhs) on scalars or vectors.
  Value combine(const Combiner &combiner, Value lhs, Value rhs) {
    Operation *op = b.create(loc, combiner.op->getName().getIdentifier(), ValueRange{lhs, rhs},
                             TypeRange{lhs.getType()}, combiner.op->getAttrs());
    return op->getResult(0);
  }

  /// One step of the reduction: the partial results `sums` (one per output) take in the elements at `iv`.
  void accumulate(MutableArrayRef<Value> sums, const IRMapping &uniform, Value iv, int64_t lanes) {
    ivs[plan.vectorLoop] = iv;
    IRMapping mapping = uniform;
    emitVarying(mapping, lanes);
    for (auto [sum, combiner] : llvm::zip_equal(sums, plan.combiners))
      sum = combine(combiner, sum, broadcast(mapping.lookupOrDefault(combiner.value), lanes));
  }

  SmallVector<Value> reductionLoop(Value from, Value to, int64_t lanes, int64_t copies, ArrayRef<Value> sums,
                                   const IRMapping &uniform) {
    auto forOp = scf::ForOp::create(b, loc, from, to, constant(lanes * copies), sums,
                                    [&](OpBuilder &nested, Location, Value iv, ValueRange carried) {
                                      SmallVector<Value> next(carried);
                                      at(nested, [&] {
                                        for (int64_t copy = 0; copy < copies; ++copy) {
                                          Value offset = arith::AddIOp::create(b, loc, iv, constant(copy * lanes));
                                          accumulate(MutableArrayRef(next).slice(copy * outputs(), outputs()), uniform,
                                                     offset, lanes);
                                        }
                                      });
                                      scf::YieldOp::create(nested, loc, next);
                                    });
    return SmallVector<Value>(forOp.getResults());
  }

  size_t outputs() const { return plan.combiners.size(); }

  void emitReduction(IRMapping &uniform) {
    constexpr int64_t copies = 4;
    Value size = sizes[plan.vectorLoop];
    SmallVector<Value> sums;
    for (int64_t copy = 0; copy < copies; ++copy)
      for (const Combiner &combiner : plan.combiners) {
        TypedAttr neutral = *arith::getNeutralElement(combiner.op);
        auto type = VectorType::get(plan.lanes, neutral.getType());
        sums.push_back(arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, Attribute(neutral))));
      }
    Value mainEnd = floorTo(size, plan.lanes * copies), vectorEnd = floorTo(size, plan.lanes);
    sums = reductionLoop(constant(0), mainEnd, plan.lanes, copies, sums, uniform);
    for (int64_t live = copies / 2; live >= 1; live /= 2)
      for (size_t i = 0; i < live * outputs(); ++i)
        sums[i] = combine(plan.combiners[i % outputs()], sums[i], sums[i + live * outputs()]);
    sums.resize(outputs());
    sums = reductionLoop(mainEnd, vectorEnd, plan.lanes, 1, sums, uniform);
    for (auto [sum, combiner] : llvm::zip_equal(sums, plan.combiners))
      sum = vector::ReductionOp::create(b, loc, combiner.kind, sum);
    sums = reductionLoop(vectorEnd, size, 1, 1, sums, uniform);
    for (auto [sum, combiner, init] : llvm::zip_equal(sums, plan.combiners, op.getDpsInitsMutable())) {
      Value before = uniform.lookup(op.getMatchingBlockArgument(&init));
      memref::StoreOp::create(b, loc, combine(combiner, before, sum), init.get(), indicesOf(init));
    }
  }

  Value floorTo(Value size, int64_t multiple) {
    Value rest = b.createOrFold<arith::RemUIOp>(loc, size, constant(multiple));
    return b.createOrFold<arith::SubIOp>(loc, size, rest);
  }
};

struct GenericVectorize : buddy::impl::GenericVectorizeBase<GenericVectorize> {
  using Base::Base;

  void runOnOperation() override {
    FailureOr<Target> target = Target::get(getOperation());
    if (failed(target))
      return signalPassFailure();
    replaceCopies();
    SmallVector<linalg::LinalgOp> ops;
    getOperation().walk([&](linalg::LinalgOp op) { ops.push_back(op); });
    for (linalg::LinalgOp op : ops) {
      if (!op.hasPureBufferSemantics() || !op.getBlock() || op->getNumRegions() != 1)
        continue;
      NestEmitter(op, vectorize ? Planner(op, *target).plan() : Plan()).emit();
      op->erase();
    }
  }

private:
  /// memref.copy of strided buffers would become a call into a run-time library.
  void replaceCopies() {
    SmallVector<memref::CopyOp> copies;
    getOperation().walk([&](memref::CopyOp op) { copies.push_back(op); });
    for (memref::CopyOp copy : copies) {
      OpBuilder b(copy);
      if (isa<MemRefType>(copy.getSource().getType()) && isa<MemRefType>(copy.getTarget().getType())) {
        linalg::CopyOp::create(b, copy.getLoc(), copy.getSource(), copy.getTarget());
        copy.erase();
      }
    }
  }
};

} // namespace
