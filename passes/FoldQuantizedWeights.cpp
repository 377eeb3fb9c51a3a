//===- FoldQuantizedWeights.cpp - Read narrow weights in place ------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "PackedContraction.h"
#include "Passes.h"

#include "mlir/Dialect/Affine/IR/AffineOps.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Linalg/Transforms/Transforms.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/Transforms/Transforms.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Tensor/Transforms/Transforms.h"
#include "mlir/Dialect/Utils/StructuredOpsUtils.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_FOLDQUANTIZEDWEIGHTS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::isMultiplyAdd;

namespace {

/// A tensor that is computed element by element from narrower storage, with dimensions of the result collapsed:
/// dimension i of the tensor stands for the loops `groups[i]` of `op`.
struct Dequantized {
  linalg::GenericOp op;
  SmallVector<ReassociationIndices> groups;

  int64_t loopExtent(int64_t loop) const { return cast<RankedTensorType>(op->getResult(0).getType()).getDimSize(loop); }
  SmallVector<int64_t> extents(int64_t group) const {
    return llvm::map_to_vector(groups[group], [&](int64_t loop) { return loopExtent(loop); });
  }
};

/// Whether the op does no more than widen what it reads: parallel loops, a pure body, some input narrower than its
/// output, each input read at a selection of the loops.
bool isDequantizer(linalg::GenericOp op) {
  if (op.getNumDpsInits() != 1 || op.getNumDpsInputs() == 0 || !op.hasPureTensorSemantics() ||
      op.getNumParallelLoops() != op.getNumLoops())
    return false;
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  if (!maps.back().isIdentity() || !op.getRegionOutputArgs()[0].use_empty() ||
      !llvm::all_of(maps, [](AffineMap map) { return map.isProjectedPermutation(); }))
    return false;
  Type result = getElementTypeOrSelf(op.getResult(0).getType());
  auto isNarrower = [&](Value input) {
    Type element = getElementTypeOrSelf(input.getType());
    return element.isIntOrFloat() && element.getIntOrFloatBitWidth() < result.getIntOrFloatBitWidth();
  };
  return isa<FloatType>(result) && llvm::any_of(op.getDpsInputs(), isNarrower) &&
         llvm::all_of(op.getBody()->without_terminator(),
                      [](Operation &nested) { return nested.getNumRegions() == 0 && isPure(&nested); });
}

FailureOr<Dequantized> findDequantized(Value value) {
  auto collapse = value.getDefiningOp<tensor::CollapseShapeOp>();
  auto op = (collapse ? collapse.getSrc() : value).getDefiningOp<linalg::GenericOp>();
  if (!op || !isDequantizer(op))
    return failure();
  if (collapse)
    return Dequantized{op, collapse.getReassociationIndices()};
  SmallVector<ReassociationIndices> groups;
  for (int64_t loop = 0; loop < op.getNumLoops(); ++loop)
    groups.push_back({loop});
  return Dequantized{op, groups};
}

/// Copies the body of `op`, whose block arguments stand for `inputs`; `index` gives the number of a loop's iteration.
Value inlineBody(OpBuilder &b, linalg::GenericOp op, ValueRange inputs, function_ref<Value(int64_t)> index) {
  IRMapping mapping;
  mapping.map(op.getRegionInputArgs(), inputs);
  for (Operation &nested : op.getBody()->without_terminator()) {
    if (auto number = dyn_cast<linalg::IndexOp>(nested))
      mapping.map(number.getResult(), index(number.getDim()));
    else
      b.clone(nested, mapping);
  }
  return mapping.lookupOrDefault(op.getBody()->getTerminator()->getOperand(0));
}

/// One factor of a contraction, over the loops of the contraction that is made.
struct Factor {
  SmallVector<Value> inputs;
  SmallVector<AffineMap> maps;
  linalg::GenericOp dequantizer; ///< null: the one input is the factor itself
  SmallVector<int64_t> loops;    ///< the contraction's loop for each loop of `dequantizer`
};

/// With W = collapse_shape(dequantize(q, ...)), k standing for (k1, k2, ...):
///   C[m, p, j] += A[m, k] * W[p, k, j]   ->   C[m, p, j] += A[m, k1, k2, ...] * dequantize(q, ...)[p, k1, k2, ..., j]
/// and A the same way, if it is dequantised along the same k1, k2, ...
struct FoldIntoContraction : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(linalg::GenericOp op, PatternRewriter &rewriter) const override {
    if (op.getNumLoops() != 4 || op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 ||
        !op.hasPureTensorSemantics() || !isMultiplyAdd(op.getBody()))
      return rewriter.notifyMatchFailure(op, "not a contraction with panels");
    AffineExpr m, p, j, k;
    bindDims(op.getContext(), m, p, j, k);
    if (op.getIndexingMapsArray() !=
        AffineMap::inferFromExprList({ArrayRef<AffineExpr>{m, k}, {p, k, j}, {m, p, j}}, op.getContext()))
      return rewriter.notifyMatchFailure(op, "not the loops of fold-packed-weights");
    FailureOr<Dequantized> weight = findDequantized(op.getDpsInputs()[1]);
    if (failed(weight) || weight->groups[0].size() != 1 || weight->groups[2].size() != 1)
      return rewriter.notifyMatchFailure(op, "the weight is not dequantised");
    SmallVector<int64_t> depths = weight->extents(1);
    if (llvm::any_of(depths, ShapedType::isDynamic))
      return rewriter.notifyMatchFailure(op, "the depth is not static");

    constexpr unsigned outer = 3; // m, p, j
    unsigned loops = outer + depths.size();
    Factor a = activation(op.getDpsInputs()[0], depths, loops, rewriter, op.getLoc());
    Factor w{SmallVector<Value>(weight->op.getDpsInputs()), {}, weight->op, {1}};
    for (unsigned i = 0; i < depths.size(); ++i)
      w.loops.push_back(outer + i);
    w.loops.push_back(2);
    w.maps = mapsOver(w, loops);

    SmallVector<Value> inputs = llvm::to_vector(llvm::concat<Value>(a.inputs, w.inputs));
    SmallVector<AffineMap> maps = llvm::to_vector(llvm::concat<AffineMap>(a.maps, w.maps));
    maps.push_back(AffineMap::get(loops, 0, {m, p, j}, op.getContext()));
    SmallVector<utils::IteratorType> iterators(loops, utils::IteratorType::reduction);
    std::fill_n(iterators.begin(), outer, utils::IteratorType::parallel);
    auto value = [](OpBuilder &b, Location loc, const Factor &factor, ValueRange inputs) {
      return factor.dequantizer ? inlineBody(b, factor.dequantizer, inputs,
                                             [&](int64_t loop) -> Value {
                                               return linalg::IndexOp::create(b, loc, factor.loops[loop]);
                                             })
                                : inputs[0];
    };
    rewriter.replaceOpWithNewOp<linalg::GenericOp>(
        op, op.getResultTypes(), inputs, op.getDpsInits(), maps, iterators,
        [&](OpBuilder &b, Location loc, ValueRange args) {
          size_t count = a.inputs.size();
          Value lhs = value(b, loc, a, args.take_front(count));
          Value rhs = value(b, loc, w, args.drop_front(count).drop_back());
          Value product = arith::MulFOp::create(b, loc, lhs, rhs);
          linalg::YieldOp::create(b, loc, arith::AddFOp::create(b, loc, args.back(), product).getResult());
        });
    return success();
  }

private:
  /// A[m, k] over the loops m and k1, k2, ...
  static Factor activation(Value value, ArrayRef<int64_t> depths, unsigned loops, OpBuilder &b, Location loc) {
    FailureOr<Dequantized> dequantized = findDequantized(value);
    if (succeeded(dequantized) && dequantized->extents(1) == depths)
      if (FailureOr<SmallVector<Value>> inputs = collapseRows(*dequantized, b, loc); succeeded(inputs)) {
        // Its leading loops are the rows, which have become one: (rows..., k...) -> (m, k...).
        size_t rows = dequantized->groups[0].size();
        Factor factor{*inputs, {}, dequantized->op, SmallVector<int64_t>(rows, 0)};
        for (unsigned i = 0; i < depths.size(); ++i)
          factor.loops.push_back(loops - depths.size() + i);
        factor.maps = mapsOver(factor, loops);
        for (AffineMap &map : factor.maps)
          map = AffineMap::get(loops, 0, map.getResults().drop_front(rows - 1), b.getContext());
        return factor;
      }
    SmallVector<AffineExpr> exprs = {b.getAffineDimExpr(0)};
    ReassociationIndices expanded;
    for (unsigned i = 0; i < depths.size(); ++i) {
      exprs.push_back(b.getAffineDimExpr(loops - depths.size() + i));
      expanded.push_back(1 + i);
    }
    if (depths.size() > 1) {
      auto type = cast<RankedTensorType>(value.getType());
      SmallVector<int64_t> shape = {type.getDimSize(0)};
      llvm::append_range(shape, depths);
      value = tensor::ExpandShapeOp::create(b, loc, RankedTensorType::get(shape, type.getElementType()), value,
                                            ArrayRef<ReassociationIndices>{{0}, expanded});
    }
    return {{value}, {AffineMap::get(loops, 0, exprs, b.getContext())}, {}, {}};
  }

  /// The inputs of a dequantiser with the loops of its first group, which must lead in every one, collapsed into one.
  static FailureOr<SmallVector<Value>> collapseRows(const Dequantized &dequantized, OpBuilder &b, Location loc) {
    linalg::GenericOp op = dequantized.op;
    int64_t rows = dequantized.groups[0].size();
    for (OpOperand *input : op.getDpsInputOperands()) {
      AffineMap map = op.getMatchingIndexingMap(input);
      if (map.getNumResults() < rows)
        return failure();
      for (int64_t row = 0; row < rows; ++row)
        if (map.getDimPosition(row) != row)
          return failure();
    }
    bool readsRow = false;
    op.getBody()->walk([&](linalg::IndexOp index) { readsRow |= static_cast<int64_t>(index.getDim()) < rows; });
    if (readsRow)
      return failure();
    SmallVector<Value> inputs(op.getDpsInputs());
    if (rows > 1)
      for (Value &input : inputs) {
        SmallVector<ReassociationIndices> groups = {llvm::to_vector<2>(llvm::seq<int64_t>(0, rows))};
        for (int64_t dim = rows; dim < cast<RankedTensorType>(input.getType()).getRank(); ++dim)
          groups.push_back({dim});
        input = tensor::CollapseShapeOp::create(b, loc, input, groups);
      }
    return inputs;
  }

  static SmallVector<AffineMap> mapsOver(const Factor &factor, unsigned loops) {
    linalg::GenericOp op = factor.dequantizer;
    SmallVector<AffineExpr> dims = llvm::map_to_vector(
        factor.loops, [&](int64_t loop) { return getAffineDimExpr(static_cast<unsigned>(loop), op.getContext()); });
    SmallVector<AffineMap> maps;
    for (OpOperand *input : op.getDpsInputOperands())
      maps.push_back(op.getMatchingIndexingMap(input).replaceDimsAndSymbols(dims, {}, loops, 0));
    return maps;
  }
};

/// An element of a dequantised tensor is computed from the elements of the storage that it depends on.
struct FoldIntoExtract : OpRewritePattern<tensor::ExtractOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(tensor::ExtractOp op, PatternRewriter &rewriter) const override {
    FailureOr<Dequantized> dequantized = findDequantized(op.getTensor());
    if (failed(dequantized))
      return rewriter.notifyMatchFailure(op, "not an element of a dequantised tensor");
    for (const ReassociationIndices &group : dequantized->groups)
      for (int64_t loop : ArrayRef(group).drop_front())
        if (ShapedType::isDynamic(dequantized->loopExtent(loop)))
          return rewriter.notifyMatchFailure(op, "an inner extent of a collapsed dimension is dynamic");
    Location loc = op.getLoc();
    SmallVector<Value> loops(dequantized->op.getNumLoops());
    for (auto [group, index] : llvm::zip_equal(dequantized->groups, op.getIndices())) {
      // index = ((i1 * extent2) + i2) * extent3 + ...
      Value rest = index;
      for (int64_t loop : llvm::reverse(ArrayRef(group).drop_front())) {
        Value size = arith::ConstantIndexOp::create(rewriter, loc, dequantized->loopExtent(loop));
        loops[loop] = arith::RemUIOp::create(rewriter, loc, rest, size);
        rest = arith::DivUIOp::create(rewriter, loc, rest, size);
      }
      loops[group.front()] = rest;
    }
    SmallVector<Value> elements;
    for (OpOperand *input : dequantized->op.getDpsInputOperands()) {
      AffineMap map = dequantized->op.getMatchingIndexingMap(input);
      SmallVector<Value> indices;
      for (unsigned result = 0; result < map.getNumResults(); ++result)
        indices.push_back(loops[map.getDimPosition(result)]);
      elements.push_back(tensor::ExtractOp::create(rewriter, loc, input->get(), indices));
    }
    rewriter.replaceOp(op, inlineBody(rewriter, dequantized->op, elements, [&](int64_t loop) { return loops[loop]; }));
    return success();
  }
};

/// max(0, |x|, ...) of floats is the largest of their bits as integers, a NaN above all: one instruction instead of a
/// comparison, a test for NaN and one for the sign of zero.
struct CompareMagnitudesAsIntegers : OpRewritePattern<linalg::GenericOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(linalg::GenericOp op, PatternRewriter &rewriter) const override {
    if (op.getNumDpsInputs() != 1 || op.getNumDpsInits() != 1 || !op.hasPureTensorSemantics() ||
        op.getNumReductionLoops() == 0 || !llvm::hasNItems(op.getBody()->without_terminator(), 2))
      return rewriter.notifyMatchFailure(op, "no reduction of one tensor");
    Block *body = op.getBody();
    auto most = body->getTerminator()->getOperand(0).getDefiningOp<arith::MaximumFOp>();
    if (!most || !most.getType().isF32())
      return rewriter.notifyMatchFailure(op, "no maximum of f32");
    Value out = body->getArgument(1);
    Value other = most.getLhs() == out ? most.getRhs() : most.getRhs() == out ? most.getLhs() : Value();
    auto magnitude = other ? other.getDefiningOp<math::AbsFOp>() : math::AbsFOp();
    auto fill = op.getDpsInits()[0].getDefiningOp<linalg::FillOp>();
    if (!magnitude || magnitude.getOperand() != body->getArgument(0) || !fill ||
        !matchPattern(fill.getInputs()[0], m_PosZeroFloat()))
      return rewriter.notifyMatchFailure(op, "no maximum of magnitudes from zero on");

    Location loc = op.getLoc();
    Type i32 = rewriter.getI32Type(), f32 = rewriter.getF32Type();
    SmallVector<OpFoldResult> sizes = tensor::getMixedSizes(rewriter, loc, fill.getOutputs()[0]);
    auto empty = [&](Type element) { return tensor::EmptyOp::create(rewriter, loc, sizes, element).getResult(); };
    Value zero = arith::ConstantOp::create(rewriter, loc, rewriter.getI32IntegerAttr(0));
    Value start = linalg::FillOp::create(rewriter, loc, zero, empty(i32)).getResult(0);
    Value bits = linalg::GenericOp::create(rewriter, loc, start.getType(), op.getDpsInputs(), start,
                                           op.getIndexingMapsArray(), op.getIteratorTypesArray(),
                                           [&](OpBuilder &b, Location at, ValueRange args) {
                                             Value absolute = math::AbsFOp::create(b, at, args[0]);
                                             Value number = arith::BitcastOp::create(b, at, i32, absolute);
                                             Value larger = arith::MaxSIOp::create(b, at, args[1], number);
                                             linalg::YieldOp::create(b, at, larger);
                                           })
                     .getResult(0);
    int64_t rank = cast<RankedTensorType>(bits.getType()).getRank();
    SmallVector<AffineMap> maps(2, rewriter.getMultiDimIdentityMap(rank));
    SmallVector<utils::IteratorType> parallel(rank, utils::IteratorType::parallel);
    rewriter.replaceOpWithNewOp<linalg::GenericOp>(op, op.getResultTypes(), bits, empty(f32), maps, parallel,
                                                   [&](OpBuilder &b, Location at, ValueRange args) {
                                                     Value value = arith::BitcastOp::create(b, at, f32, args[0]);
                                                     linalg::YieldOp::create(b, at, value);
                                                   });
    return success();
  }
};

/// Loops of an op over (m, g, h, q, r) that can be one, as the op goes through them in the order of memory: m and g,
/// and h, q and r. A loop over four places would be too short for vectors, and two loops over rows and groups would be
/// taken apart again by a division.
SmallVector<ReassociationIndices> quadLoops(linalg::LinalgOp op) {
  SmallVector<int64_t> extents = op.getStaticLoopRanges();
  SmallVector<utils::IteratorType> kinds = op.getIteratorTypesArray();
  SmallVector<AffineMap> maps = op.getIndexingMapsArray();
  int64_t last = static_cast<int64_t>(extents.size()) - 1;
  if (last < 3 || extents[last] != 4 || op.getNumDpsInputs() == 0 ||
      !llvm::all_of(maps, [](AffineMap map) { return map.isProjectedPermutation(); }))
    return {};
  SmallVector<ReassociationIndices> found = {{0, 1}, llvm::to_vector<2>(llvm::seq<int64_t>(2, last + 1))};
  for (const ReassociationIndices &loops : found)
    for (int64_t loop : loops)
      if (kinds[loop] != kinds[loops.front()] || (loop > 0 && ShapedType::isDynamic(extents[loop])))
        return {};
  if (!linalg::areDimSequencesPreserved(maps, found))
    return {};
  return found;
}

struct FoldQuantizedWeights : buddy::impl::FoldQuantizedWeightsBase<FoldQuantizedWeights> {
  void runOnOperation() override {
    MLIRContext *context = &getContext();
    RewritePatternSet patterns(context);
    patterns.add<FoldIntoContraction, FoldIntoExtract>(context);
    // Reshapes between a dequantiser and its reader meet and become one.
    tensor::CollapseShapeOp::getCanonicalizationPatterns(patterns, context);
    tensor::ExpandShapeOp::getCanonicalizationPatterns(patterns, context);
    // A size that is asked of a dequantised tensor would keep it.
    memref::populateResolveRankedShapedTypeResultDimsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      return signalPassFailure();
    // What computes the activations' integers, once the contractions have them as they are.
    RewritePatternSet collapsing(context);
    collapsing.add<CompareMagnitudesAsIntegers>(context);
    linalg::populateCollapseDimensions(collapsing, quadLoops);
    tensor::populateFoldTensorEmptyPatterns(collapsing);
    linalg::FillOp::getCanonicalizationPatterns(collapsing, context);
    tensor::CollapseShapeOp::getCanonicalizationPatterns(collapsing, context);
    tensor::ExpandShapeOp::getCanonicalizationPatterns(collapsing, context);
    if (failed(applyPatternsGreedily(getOperation(), std::move(collapsing))))
      signalPassFailure();
  }
};

} // namespace
