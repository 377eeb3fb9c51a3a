//===- FoldPackedWeights.cpp - Read packed weights in place ---------------===//
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
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/Utils/StaticValueUtils.h"
#include "mlir/Dialect/Utils/StructuredOpsUtils.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/RegionUtils.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_FOLDPACKEDWEIGHTS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using mlir::buddy::isMultiplyAdd;

namespace {

/// What a dimension of a tensor is in the weight that the tensor is a view of.
enum class WeightDim { n, k, unit };

/// A tensor that is an unpacked weight, up to unit dimensions and the order of its dimensions.
struct UnpackedWeight {
  Value packed;                   ///< P x K x R
  SmallVector<WeightDim, 4> dims; ///< per dimension of the tensor
  int64_t rows;                   ///< N

  int64_t panel() const { return cast<RankedTensorType>(packed.getType()).getDimSize(2); }
  int64_t panels() const { return cast<RankedTensorType>(packed.getType()).getDimSize(0); }
  int64_t depth() const { return cast<RankedTensorType>(packed.getType()).getDimSize(1); }
};

FailureOr<UnpackedWeight> matchUnpack(linalg::UnPackOp unpack) {
  auto source = dyn_cast<RankedTensorType>(unpack.getSource().getType());
  auto result = dyn_cast<RankedTensorType>(unpack.getDest().getType());
  if (!source || !result || source.getRank() != 3 || !source.hasStaticShape() || !result.hasStaticShape() ||
      unpack.getInnerDimsPos().size() != 1)
    return failure();
  // The panels are the outermost dimension of the source: outer dimension 0 is the tiled one.
  int64_t tiled = unpack.getInnerDimsPos()[0];
  ArrayRef<int64_t> perm = unpack.getOuterDimsPerm();
  if ((perm.empty() ? 0 : perm[0]) != tiled)
    return failure();
  UnpackedWeight weight{unpack.getSource(), {WeightDim::k, WeightDim::k}, result.getDimSize(tiled)};
  weight.dims[tiled] = WeightDim::n;
  return weight;
}

/// Carries the dimensions through a reshape that adds or removes unit dimensions alone.
LogicalResult reshapeDims(UnpackedWeight &weight, RankedTensorType from, RankedTensorType to) {
  SmallVector<WeightDim, 4> dims;
  int64_t next = 0;
  auto skipUnits = [&] {
    while (next < from.getRank() && weight.dims[next] == WeightDim::unit)
      ++next;
  };
  for (int64_t size : to.getShape()) {
    skipUnits();
    if (next < from.getRank() && from.getDimSize(next) == size && size != 1) {
      dims.push_back(weight.dims[next++]);
      continue;
    }
    if (size != 1)
      return failure();
    dims.push_back(WeightDim::unit);
  }
  skipUnits();
  weight.dims = dims;
  return success(next == from.getRank());
}

/// Finds the unpack behind `value` through reshapes, casts and transpositions.
FailureOr<UnpackedWeight> findUnpackedWeight(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op)
    return failure();
  if (auto unpack = dyn_cast<linalg::UnPackOp>(op))
    return matchUnpack(unpack);
  if (isa<tensor::ExpandShapeOp, tensor::CollapseShapeOp>(op)) {
    auto weight = findUnpackedWeight(op->getOperand(0));
    if (failed(weight) || failed(reshapeDims(*weight, cast<RankedTensorType>(op->getOperand(0).getType()),
                                             cast<RankedTensorType>(value.getType()))))
      return failure();
    return weight;
  }
  if (isa<tensor::CastOp>(op) && cast<ShapedType>(op->getOperand(0).getType()).hasRank())
    return findUnpackedWeight(op->getOperand(0));
  if (auto transpose = dyn_cast<linalg::TransposeOp>(op)) {
    auto weight = findUnpackedWeight(transpose.getInput());
    if (failed(weight))
      return failure();
    SmallVector<WeightDim, 4> dims;
    for (int64_t source : transpose.getPermutation())
      dims.push_back(weight->dims[source]);
    weight->dims = dims;
    return weight;
  }
  return failure();
}

bool isZeroFill(Value value) {
  auto fill = value.getDefiningOp<linalg::FillOp>();
  return fill && matchPattern(fill.getInputs()[0], m_AnyZeroFloat());
}

/// The loop that a map's result stands for; failure for a constant or a compound expression.
FailureOr<unsigned> loopOf(AffineExpr expr) {
  if (auto dim = dyn_cast<AffineDimExpr>(expr))
    return dim.getPosition();
  return failure();
}

/// C[m..., n] += A[m..., k] * W[n, k]  ->  C'[m, p, j] = sum_k A[m, k] * packed[p, k, j].
struct FoldIntoContraction : OpInterfaceRewritePattern<linalg::LinalgOp> {
  using OpInterfaceRewritePattern::OpInterfaceRewritePattern;

  LogicalResult matchAndRewrite(linalg::LinalgOp op, PatternRewriter &rewriter) const override {
    if (op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 || !op.hasPureTensorSemantics() || !op.getBlock() ||
        !isMultiplyAdd(op.getBlock()))
      return rewriter.notifyMatchFailure(op, "not a contraction of two tensors");
    for (unsigned weightIndex : {1u, 0u}) {
      auto weight = findUnpackedWeight(op.getDpsInputOperand(weightIndex)->get());
      if (succeeded(weight) && succeeded(rewrite(op, weightIndex, *weight, rewriter)))
        return success();
    }
    return rewriter.notifyMatchFailure(op, "no operand is an unpacked weight in a foldable position");
  }

private:
  static LogicalResult rewrite(linalg::LinalgOp op, unsigned weightIndex, const UnpackedWeight &weight,
                               PatternRewriter &rewriter) {
    OpOperand *weightOperand = op.getDpsInputOperand(weightIndex);
    OpOperand *inputOperand = op.getDpsInputOperand(1 - weightIndex);
    OpOperand *initOperand = op.getDpsInitOperand(0);
    AffineMap weightMap = op.getMatchingIndexingMap(weightOperand);
    SmallVector<int64_t> extents = op.getStaticLoopRanges();
    std::optional<unsigned> n, k;
    for (auto [dim, expr] : llvm::zip_equal(weight.dims, weightMap.getResults())) {
      if (dim == WeightDim::unit)
        continue;
      FailureOr<unsigned> loop = loopOf(expr);
      if (failed(loop))
        return failure();
      (dim == WeightDim::n ? n : k) = *loop;
    }
    if (!n || !k || n == k)
      return failure();
    if (!rowsThenColumn(op.getMatchingIndexingMap(inputOperand), *k, *n) ||
        !rowsThenColumn(op.getMatchingIndexingMap(initOperand), *n, *k))
      return failure();
    // The row loops of A and C must be the same ones in the same order, up to those of extent 1.
    auto rowLoops = [&](OpOperand *operand) {
      SmallVector<unsigned> loops;
      for (AffineExpr expr : op.getMatchingIndexingMap(operand).getResults().drop_back())
        if (FailureOr<unsigned> loop = loopOf(expr); succeeded(loop) && extents[*loop] != 1)
          loops.push_back(*loop);
      return loops;
    };
    SmallVector<unsigned> rows = rowLoops(initOperand);
    if (rowLoops(inputOperand) != rows)
      return failure();
    for (auto [loop, extent] : llvm::enumerate(extents))
      if (loop != *n && loop != *k && extent != 1 && !llvm::is_contained(rows, loop))
        return failure();

    Location loc = op.getLoc();
    Value product = contractWithPanels(rewriter, loc, flattenRows(rewriter, loc, inputOperand->get()), weight);
    Value init = initOperand->get();
    Value result = unflattenRows(rewriter, loc, product, init);
    if (!isZeroFill(init))
      result = addElementwise(rewriter, loc, result, init);
    rewriter.replaceOp(op, result);
    return success();
  }

  /// Whether the map's last result is `last`, and `absent` stands nowhere in it.
  static bool rowsThenColumn(AffineMap map, unsigned last, unsigned absent) {
    if (map.getNumResults() < 1 || map.isFunctionOfDim(absent))
      return false;
    FailureOr<unsigned> loop = loopOf(map.getResults().back());
    return succeeded(loop) && *loop == last &&
           llvm::none_of(map.getResults().drop_back(), [&](AffineExpr expr) { return expr.isFunctionOfDim(last); });
  }

  /// Collapses (or expands, for a vector) to M x K.
  static Value flattenRows(OpBuilder &b, Location loc, Value value) {
    auto type = cast<RankedTensorType>(value.getType());
    int64_t rank = type.getRank();
    if (rank == 2)
      return value;
    if (rank == 1)
      return tensor::ExpandShapeOp::create(b, loc,
                                           RankedTensorType::get({1, type.getDimSize(0)}, type.getElementType()), value,
                                           ArrayRef<ReassociationIndices>{{0, 1}});
    ReassociationIndices rows = llvm::to_vector<2>(llvm::seq<int64_t>(0, rank - 1));
    return tensor::CollapseShapeOp::create(b, loc, value, ArrayRef<ReassociationIndices>{rows, {rank - 1}});
  }

  static Value contractWithPanels(OpBuilder &b, Location loc, Value input, const UnpackedWeight &weight) {
    auto type = cast<RankedTensorType>(input.getType());
    Type element = type.getElementType();
    MLIRContext *context = b.getContext();
    OpFoldResult rows = tensor::getMixedSize(b, loc, input, 0);
    SmallVector<OpFoldResult> sizes = {rows, b.getIndexAttr(weight.panels()), b.getIndexAttr(weight.panel())};
    Value zero = arith::ConstantOp::create(b, loc, b.getZeroAttr(element));
    Value empty = tensor::EmptyOp::create(b, loc, sizes, element);
    Value init = linalg::FillOp::create(b, loc, zero, empty).getResult(0);
    AffineExpr m, p, j, k;
    bindDims(context, m, p, j, k);
    SmallVector<AffineMap> maps = {AffineMap::get(4, 0, {m, k}, context), AffineMap::get(4, 0, {p, k, j}, context),
                                   AffineMap::get(4, 0, {m, p, j}, context)};
    auto parallel = utils::IteratorType::parallel;
    SmallVector<utils::IteratorType> iterators = {parallel, parallel, parallel, utils::IteratorType::reduction};
    Value product =
        linalg::GenericOp::create(b, loc, init.getType(), ValueRange{input, weight.packed}, init, maps, iterators,
                                  [](OpBuilder &nested, Location at, ValueRange args) {
                                    Value mul = arith::MulFOp::create(nested, at, args[0], args[1]);
                                    Value add = arith::AddFOp::create(nested, at, args[2], mul);
                                    linalg::YieldOp::create(nested, at, add);
                                  })
            .getResult(0);
    Value flat = tensor::CollapseShapeOp::create(b, loc, product, ArrayRef<ReassociationIndices>{{0}, {1, 2}});
    if (weight.rows == weight.panels() * weight.panel())
      return flat;
    SmallVector<OpFoldResult> offsets(2, b.getIndexAttr(0)), strides(2, b.getIndexAttr(1));
    SmallVector<OpFoldResult> cut = {rows, b.getIndexAttr(weight.rows)};
    return tensor::ExtractSliceOp::create(b, loc, flat, offsets, cut, strides);
  }

  /// Gives M x N the shape of `like`, whose leading dimensions multiply to M.
  static Value unflattenRows(OpBuilder &b, Location loc, Value value, Value like) {
    auto type = cast<RankedTensorType>(like.getType());
    int64_t rank = type.getRank();
    if (rank == 1)
      return tensor::CollapseShapeOp::create(b, loc, type, value, ArrayRef<ReassociationIndices>{{0, 1}});
    if (rank == 2)
      return type == value.getType() ? value : Value(tensor::CastOp::create(b, loc, type, value));
    ReassociationIndices rows = llvm::to_vector<2>(llvm::seq<int64_t>(0, rank - 1));
    return tensor::ExpandShapeOp::create(b, loc, type, value, ArrayRef<ReassociationIndices>{rows, {rank - 1}},
                                         tensor::getMixedSizes(b, loc, like));
  }

  static Value addElementwise(OpBuilder &b, Location loc, Value product, Value init) {
    auto type = cast<RankedTensorType>(init.getType());
    SmallVector<AffineMap> maps(2, b.getMultiDimIdentityMap(type.getRank()));
    SmallVector<utils::IteratorType> iterators(type.getRank(), utils::IteratorType::parallel);
    return linalg::GenericOp::create(b, loc, type, product, init, maps, iterators,
                                     [](OpBuilder &nested, Location at, ValueRange args) {
                                       Value sum = arith::AddFOp::create(nested, at, args[1], args[0]);
                                       linalg::YieldOp::create(nested, at, sum);
                                     })
        .getResult(0);
  }
};

/// tensor.extract %w[n, k]  ->  tensor.extract %packed[n / R, k, n % R].
struct FoldIntoExtract : OpRewritePattern<tensor::ExtractOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(tensor::ExtractOp op, PatternRewriter &rewriter) const override {
    auto weight = findUnpackedWeight(op.getTensor());
    if (failed(weight))
      return rewriter.notifyMatchFailure(op, "not an element of an unpacked weight");
    Value n, k;
    for (auto [dim, index] : llvm::zip_equal(weight->dims, op.getIndices()))
      if (dim != WeightDim::unit)
        (dim == WeightDim::n ? n : k) = index;
    if (!n || !k)
      return rewriter.notifyMatchFailure(op, "a dimension of the weight is of extent 1");
    Location loc = op.getLoc();
    Value panel = arith::ConstantIndexOp::create(rewriter, loc, weight->panel());
    Value p = arith::DivUIOp::create(rewriter, loc, n, panel);
    Value j = arith::RemUIOp::create(rewriter, loc, n, panel);
    rewriter.replaceOpWithNewOp<tensor::ExtractOp>(op, weight->packed, ValueRange{p, k, j});
    return success();
  }
};

/// Whether this is what FoldIntoContraction makes.
bool isPackedContraction(linalg::GenericOp op) {
  if (op.getNumLoops() != 4 || op.getNumDpsInputs() != 2 || op.getNumDpsInits() != 1 || !op.hasPureTensorSemantics())
    return false;
  auto panels = cast<RankedTensorType>(op.getDpsInputs()[1].getType());
  return panels.getRank() == 3 && isMultiplyAdd(op.getBody());
}

/// Places contractions with the same input side by side, as far as what they read can be had there.
void gatherContractions(func::FuncOp function) {
  DenseMap<std::pair<Block *, Value>, Operation *> last;
  SmallVector<linalg::GenericOp> contractions;
  function.walk([&](linalg::GenericOp op) {
    if (isPackedContraction(op))
      contractions.push_back(op);
  });
  IRRewriter rewriter(function.getContext());
  for (linalg::GenericOp op : contractions) {
    Value input = op.getDpsInputs()[0];
    if (auto reshape = input.getDefiningOp<tensor::CollapseShapeOp>())
      input = reshape.getSrc();
    Operation *&previous = last[{op->getBlock(), input}];
    if (previous && previous->getNextNode() != op) {
      Operation *place = previous->getNextNode();
      if (failed(moveOperationDependencies(rewriter, op, place)))
        continue;
      op->moveBefore(place);
    }
    previous = op;
  }
}

struct FoldPackedWeights : buddy::impl::FoldPackedWeightsBase<FoldPackedWeights> {
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<FoldIntoContraction, FoldIntoExtract>(&getContext());
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      return signalPassFailure();
    gatherContractions(getOperation());
  }
};

} // namespace
