//===- AttentionVectorize.cpp - Blocked attention with an online softmax --===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "DecodeAttention.h"
#include "Passes.h"
#include "VectorEmitter.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include "llvm/Support/MathExtras.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_ATTENTIONVECTORIZE
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// Queries that share one transposed block of K (times the query heads of the group).
constexpr int64_t queriesPerBlock = 36;

/// The function's arguments and sizes.
struct Attention {
  Value q, k, v, layer, position, out;
  int64_t heads, kvHeads, headDim;
  bool decodes; ///< one query row
  float scale;

  int64_t groupSize() const { return heads / kvHeads; }
};

MemRefType bufferOfRank4(Value value, function_ref<bool(Type)> isElement) {
  auto type = dyn_cast<MemRefType>(value.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (!type || type.getRank() != 4 || !isElement(type.getElementType()) ||
      failed(type.getStridesAndOffset(strides, offset)) || strides.back() != 1)
    return {};
  return type;
}

/// Bytes behind a row of an i8 cache: its scale, an f32.
constexpr int64_t scaleBytes = 4;

/// Elements in a row of a cache.
int64_t cacheRow(Type element, int64_t headDim) { return headDim + (element.isInteger(8) ? scaleBytes : 0); }

FailureOr<Attention> matchAttention(func::FuncOp function, DictionaryAttr options) {
  auto refuse = [&](const Twine &reason) {
    return emitError(function.getLoc()) << "attention function '" << function.getName() << "' " << reason
                                        << "; see the contract in docs/architecture.md";
  };
  auto scale = options.getAs<FloatAttr>("scale");
  if (!scale)
    return refuse("has no f32 'scale' in its buddy.attention");
  if (function.getNumArguments() != 6 || function.getNumResults() != 0)
    return refuse("must have the buffers q, k_cache, v_cache, then layer, position, and the buffer out, no results");
  auto args = function.getArguments();
  auto isF32 = [](Type type) { return type.isF32(); };
  auto isStored = [](Type type) { return type.isF32() || type.isF16() || type.isBF16() || type.isInteger(8); };
  MemRefType q = bufferOfRank4(args[0], isF32), k = bufferOfRank4(args[1], isStored),
             v = bufferOfRank4(args[2], isStored), out = bufferOfRank4(args[5], isF32);
  if (!q || !k || !v || !out || !args[3].getType().isIndex() || !args[4].getType().isIndex())
    return refuse(
        "must have rank 4 buffers with contiguous rows, f32 but for the caches, and layer and position of type index");
  int64_t heads = q.getDimSize(1), kvHeads = k.getDimSize(1), headDim = q.getDimSize(3);
  if (ShapedType::isDynamic(heads) || ShapedType::isDynamic(kvHeads) || ShapedType::isDynamic(headDim) ||
      q.getDimSize(0) != 1 || out.getDimSize(0) != 1 || k.getDimSize(3) != cacheRow(k.getElementType(), headDim) ||
      v.getDimSize(3) != cacheRow(v.getElementType(), headDim) || out.getDimSize(2) != heads ||
      out.getDimSize(3) != headDim || v.getDimSize(1) != kvHeads || kvHeads < 1 || heads % kvHeads != 0)
    return refuse("has buffers whose sizes do not fit together");
  return Attention{args[0],
                   args[1],
                   args[2],
                   args[3],
                   args[4],
                   args[5],
                   heads,
                   kvHeads,
                   headDim,
                   q.getDimSize(2) == 1,
                   static_cast<float>(scale.getValueAsDouble())};
}

/// A register tile's rows: query rows that read the same K and V.
struct RowTile {
  int64_t rows;
  Value head;      ///< of the first row
  Value query;     ///< of the first row
  Value state;     ///< where the first row's running maximum and sum are
  bool alongHeads; ///< rows are heads of one group (decode), else consecutive queries of one head
};

/// One block of the cache's positions.
struct PositionBlock {
  Value kvHead;
  Value start; ///< first position
  Value count; ///< positions that any row of the tile attends to
  Value limit; ///< positions that the tile's first row attends to; may exceed the block, or be negative
  bool leads;  ///< fetches K and V ahead, for the tiles that follow too
};

class AttentionEmitter : VectorEmitter {
public:
  AttentionEmitter(func::FuncOp function, const Attention &attention, const Target &target)
      : VectorEmitter(OpBuilder::atBlockEnd(&function.getBody().front()), function.getLoc(), target), att(attention),
        mostTileRows(target.registers >= 32 ? 12 : 6), positions((attention.decodes ? 8 : 4) * lanes) {}

  void emit() {
    zero = index(0);
    one = index(1);
    minusInfinity = arith::ConstantOp::create(b, loc, b.getFloatAttr(f32, -std::numeric_limits<float>::infinity()));
    if (att.decodes)
      emitDecode();
    else
      emitPrefill();
  }

private:
  Attention att;
  int64_t mostTileRows; ///< with two vectors of columns they leave enough registers for the operands
  int64_t positions;    ///< per block
  Value zero, one, minusInfinity;
  // Scratch of one iteration of the parallel loop, on the stack.
  Value accumulator;  ///< (state, head_dim) in decode; in prefill the output
  Value scores;       ///< (row of the tile, position of the block)
  Value alphas;       ///< (row of the tile): how much of the sums so far remains
  Value maxima, sums; ///< (state)
  Value products;     ///< (row of the tile, position, lane): not yet summed over lanes; decode
  Value widenedV;     ///< (position of the block, head_dim): V of a narrow cache; prefill
  Value transposedK;  ///< (head_dim, position of the block); prefill

  /// head_dim in vectors: full ones, then narrower ones.
  struct Chunk {
    int64_t offset;
    VectorType type;
  };
  SmallVector<Chunk> chunks() {
    SmallVector<Chunk> result;
    int64_t offset = 0;
    for (int64_t width = lanes; width >= 1; width /= 2)
      for (; att.headDim - offset >= width; offset += width)
        result.push_back({offset, VectorType::get(width, f32)});
    return result;
  }

  Value headOf(const RowTile &tile, Value row) { return tile.alongHeads ? add(tile.head, row) : tile.head; }
  Value queryOf(const RowTile &tile, Value row) { return tile.alongHeads ? tile.query : add(tile.query, row); }
  SmallVector<Value> qAt(const RowTile &tile, Value row, Value dim) {
    return {zero, headOf(tile, row), queryOf(tile, row), dim};
  }
  /// Where a row's weighted values are summed up, in `accumulator`.
  SmallVector<Value> outAt(const RowTile &tile, Value row, Value dim) {
    if (att.decodes)
      return {add(tile.state, row), dim};
    return {zero, queryOf(tile, row), headOf(tile, row), dim};
  }

  //===--------------------------------------------------------------------===//
  // The two forms
  //===--------------------------------------------------------------------===//

  /// One query: in parallel over KV heads and ranges of positions; the query heads of a group are the rows. Each range
  /// leaves its maximum, sum and weighted values in buffers that all threads see.
  void emitDecode() {
    constexpr int64_t mostUnits = 64, leastUnits = 6;
    int64_t mostRanges = llvm::divideCeil(mostUnits, att.kvHeads);
    int64_t leastRanges = std::min<int64_t>(mostRanges, llvm::divideCeil(leastUnits, att.kvHeads));
    Value filled = add(att.position, one);
    // A block for each range, more than one where there would be too many ranges; a few ranges even of a short cache,
    // unless one thread attends to it. None of this may depend on the number of threads, which results must not show.
    Value blocks = ceilDiv(filled, index(positions));
    Value ranges = ceilDiv(blocks, ceilDiv(blocks, index(mostRanges)));
    Value isShort = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ule, filled,
                                          index(serialPositions(att.heads, att.headDim)));
    ranges = max(ranges, arith::SelectOp::create(b, loc, isShort, one, index(leastRanges)));
    Value rangeSize = ceilDiv(filled, ranges);
    ranges = ceilDiv(filled, rangeSize);
    // (range's state, its weighted values, maximum and sum): each row in cache lines of its own, since threads write to
    // different ones at once.
    Value parts = shared({mostRanges * att.heads, maximumPlace() + lanes});
    int64_t tileRows = std::min<int64_t>(att.groupSize(), 6);
    auto makeScratch = [&] {
      scores = scratch({tileRows, positions});
      alphas = scratch({tileRows});
      products = scratch({tileRows, lanes, lanes});
      maxima = scratch({att.groupSize()});
      sums = scratch({att.groupSize()});
      accumulator = scratch({att.groupSize(), att.headDim});
    };
    auto attendUnit = [&](Value unit) {
      Value kvHead = arith::DivUIOp::create(b, loc, unit, ranges);
      Value begin = arith::MulIOp::create(b, loc, arith::RemUIOp::create(b, loc, unit, ranges), rangeSize);
      Value end = min(filled, add(begin, rangeSize));
      Value firstHead = mul(kvHead, att.groupSize());
      SmallVector<RowTile> tiles;
      for (int64_t row = 0; row < att.groupSize(); row += tileRows)
        tiles.push_back({std::min(tileRows, att.groupSize() - row), add(firstHead, row), zero, index(row), true});
      fetchFirst(kvHead, begin, end);
      for (const RowTile &tile : tiles)
        startRows(tile);
      loop(begin, end, positions, [&](Value start) {
        Value left = sub(end, start);
        PositionBlock block{kvHead, start, min(left, index(positions)), left, /*leads=*/true};
        for (const RowTile &tile : tiles) {
          scoreByRows(tile, block);
          attend(tile, block);
          block.leads = false;
        }
      });
      for (const RowTile &tile : tiles)
        leaveRows(tile, parts, mul(unit, att.groupSize()));
    };
    Value units = mul(ranges, att.kvHeads);
    auto attendAlone = [&] {
      makeScratch(); // in the loop, every turn would take more of the stack
      loop(zero, units, 1, attendUnit);
    };
    auto attendTogether = [&] {
      parallel(units, [&](Value unit) {
        makeScratch();
        attendUnit(unit);
      });
    };
    scf::IfOp::create(
        b, loc, isShort, [&](OpBuilder &nested, Location) { within(nested, attendAlone); },
        [&](OpBuilder &nested, Location) { within(nested, attendTogether); });
    loop(zero, index(att.heads), 1, [&](Value head) { joinRanges(head, ranges, parts); });
  }

  void within(OpBuilder &nested, function_ref<void()> body) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
    body();
    scf::YieldOp::create(b, loc);
  }

  /// Where a row of `parts` has the maximum and the sum.
  int64_t maximumPlace() const { return llvm::divideCeil(att.headDim, lanes) * lanes; }
  int64_t sumPlace() const { return maximumPlace() + 1; }

  /// Writes what a tile's rows have come to, for joinRanges.
  void leaveRows(const RowTile &tile, Value parts, Value firstState) {
    forRows(tile, [&](Value, Value state) {
      Value part = add(firstState, state);
      for (const Chunk &chunk : chunks())
        storeVector(loadVector(chunk.type, accumulator, {state, index(chunk.offset)}), parts,
                    {part, index(chunk.offset)});
      store(load(maxima, state), parts, {part, index(maximumPlace())});
      store(load(sums, state), parts, {part, index(sumPlace())});
    });
  }

  /// The output of one head out of what its ranges left: out = sum_r w[r] * out[r] / sum_r w[r] * sum[r], where
  /// w[r] = exp(max[r] - max_r max[r]).
  void joinRanges(Value head, Value ranges, Value parts) {
    Value group = index(att.groupSize());
    Value kvHead = arith::DivUIOp::create(b, loc, head, group), row = arith::RemUIOp::create(b, loc, head, group);
    Value first = add(mul(arith::MulIOp::create(b, loc, kvHead, ranges), att.groupSize()), row);
    auto partOf = [&](Value range) { return add(first, mul(range, att.groupSize())); };
    auto maximumOf = [&](Value part) { return load(parts, {part, index(maximumPlace())}); };
    Value highest = loop(zero, ranges, 1, ValueRange{minusInfinity}, [&](Value range, ValueRange carried) {
      return Carried{larger(maximumOf(partOf(range)), carried[0])};
    })[0];
    SmallVector<Chunk> pieces = chunks();
    SmallVector<Value> start = {arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0.0f))};
    for (const Chunk &chunk : pieces)
      start.push_back(constant(0.0f, chunk.type));
    Carried joined = loop(zero, ranges, 1, start, [&](Value range, ValueRange carried) {
      Value part = partOf(range);
      Value weight = scalarExpOfNonPositive(arith::SubFOp::create(b, loc, maximumOf(part), highest));
      Value sum = load(parts, {part, index(sumPlace())});
      Carried next = {arith::AddFOp::create(b, loc, carried[0], arith::MulFOp::create(b, loc, weight, sum))};
      for (auto [number, chunk] : llvm::enumerate(pieces)) {
        Value values = loadVector(chunk.type, parts, {part, index(chunk.offset)});
        next.push_back(vector::FMAOp::create(b, loc, splat(weight, chunk.type), values, carried[number + 1]));
      }
      return next;
    });
    Value unit = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(1.0f));
    Value inverse = arith::DivFOp::create(b, loc, unit, joined[0]);
    for (auto [number, chunk] : llvm::enumerate(pieces))
      storeVector(arith::MulFOp::create(b, loc, joined[number + 1], splat(inverse, chunk.type)), att.out,
                  {zero, zero, head, index(chunk.offset)});
  }

  /// Many queries: in parallel over KV heads and blocks of queries. A block's K is transposed once for all rows.
  void emitPrefill() {
    accumulator = att.out;
    int64_t blockRows = queriesPerBlock;
    Value queries = b.createOrFold<memref::DimOp>(loc, att.q, 2);
    Value blocks = b.createOrFold<arith::CeilDivUIOp>(loc, queries, index(blockRows));
    parallel(b.createOrFold<arith::MulIOp>(loc, blocks, index(att.kvHeads)), [&](Value unit) {
      scores = scratch({mostTileRows, positions});
      alphas = scratch({mostTileRows});
      maxima = scratch({att.groupSize() * blockRows});
      sums = scratch({att.groupSize() * blockRows});
      transposedK = scratch({att.headDim, positions});
      if (!cast<MemRefType>(att.v.getType()).getElementType().isF32())
        widenedV = scratch({positions, att.headDim});
      Value kvHead = arith::DivUIOp::create(b, loc, unit, blocks);
      Value firstQuery = mul(interleave(arith::RemUIOp::create(b, loc, unit, blocks), blocks), blockRows);
      Value count = min(sub(queries, firstQuery), index(blockRows));
      Value firstHead = mul(kvHead, att.groupSize());
      Value filled = add(add(att.position, firstQuery), count);
      forEachTile(firstHead, firstQuery, count, blockRows, [&](const RowTile &tile) { startRows(tile); });
      loop(zero, filled, positions, [&](Value start) {
        Value inBlock = min(sub(filled, start), index(positions));
        transposeK(kvHead, start, inBlock);
        if (widenedV)
          widenV(kvHead, start, inBlock);
        forEachTile(firstHead, firstQuery, count, blockRows, [&](const RowTile &tile) {
          // Row i of the tile attends to the positions up to and with its own.
          Value limit = sub(add(add(att.position, tile.query), one), start);
          Value most = min(add(limit, tile.rows - 1), index(positions));
          Value sees = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::sgt, most, zero);
          auto guard = scf::IfOp::create(b, loc, sees, /*withElseRegion=*/false);
          OpBuilder::InsertionGuard insertion(b);
          b.setInsertionPointToStart(guard.thenBlock());
          scoreByColumns(tile);
          attend(tile, PositionBlock{kvHead, start, most, limit, /*leads=*/false});
        });
      });
      forEachTile(firstHead, firstQuery, count, blockRows, [&](const RowTile &tile) { finishRows(tile); });
    });
  }

  /// Early query blocks are cheap and late ones dear; taking them from both ends in turn gives every contiguous range
  /// of units the same share: 0, n-1, 1, n-2, ...
  Value interleave(Value number, Value count) {
    Value half = arith::DivUIOp::create(b, loc, number, index(2));
    Value odd =
        arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, arith::RemUIOp::create(b, loc, number, index(2)), zero);
    return arith::SelectOp::create(b, loc, odd, sub(sub(count, one), half), half);
  }

  /// Every tile of a block of queries: for each head of the group, full tiles, then ever smaller ones.
  void forEachTile(Value firstHead, Value firstQuery, Value count, int64_t blockRows,
                   function_ref<void(const RowTile &)> body) {
    loop(zero, index(att.groupSize()), 1, [&](Value headInGroup) {
      Value head = add(firstHead, headInGroup);
      Value state = mul(headInGroup, blockRows);
      Value begin = zero;
      for (int64_t rows : {mostTileRows, mostTileRows / 3, int64_t(1)}) {
        Value left = sub(count, begin);
        Value end = add(begin, sub(left, arith::RemUIOp::create(b, loc, left, index(rows))));
        loop(begin, end, rows,
             [&](Value offset) { body(RowTile{rows, head, add(firstQuery, offset), add(state, offset), false}); });
        begin = end;
      }
    });
  }

  //===--------------------------------------------------------------------===//
  // Rows: start, scores, softmax, weighted sum, end
  //===--------------------------------------------------------------------===//

  void forRows(const RowTile &tile, function_ref<void(Value row, Value state)> body) {
    loop(zero, index(tile.rows), 1, [&](Value row) { body(row, add(tile.state, row)); });
  }

  void startRows(const RowTile &tile) {
    Value none = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(0.0f));
    forRows(tile, [&](Value row, Value state) {
      store(minusInfinity, maxima, state);
      store(none, sums, state);
      for (const Chunk &chunk : chunks())
        storeVector(constant(0.0f, chunk.type), accumulator, outAt(tile, row, index(chunk.offset)));
    });
  }

  void finishRows(const RowTile &tile) {
    Value unit = arith::ConstantOp::create(b, loc, b.getF32FloatAttr(1.0f));
    forRows(tile, [&](Value row, Value state) {
      Value inverse = arith::DivFOp::create(b, loc, unit, load(sums, state));
      for (const Chunk &chunk : chunks()) {
        SmallVector<Value> at = outAt(tile, row, index(chunk.offset));
        Value sum = loadVector(chunk.type, accumulator, at);
        storeVector(arith::MulFOp::create(b, loc, sum, splat(inverse, chunk.type)), accumulator, at);
      }
    });
  }

  /// scores[r, j] = q[r] . k[j], vectors along head_dim. K is read once and in order, as the hardware likes it; the
  /// products of as many positions as a vector has lanes are then summed up across lanes together. Past `count` the
  /// scores are of no meaning: those are masked.
  void scoreByRows(const RowTile &tile, const PositionBlock &block) {
    loop(zero, block.count, lanes, [&](Value first) {
      Value some = min(sub(block.count, first), index(lanes));
      loop(zero, some, 1, [&](Value lane) {
        Value place = add(add(block.start, first), lane);
        fetchAhead(att.k, block, place);
        Value scale = scaleOf(att.k, block.kvHead, place);
        SmallVector<Value> sums(tile.rows, constant(0.0f, vectorType));
        for (int64_t offset = 0; offset < att.headDim; offset += lanes) {
          Value key = loadPadded(att.k, {att.layer, block.kvHead, place, index(offset)}, att.headDim - offset);
          key = widen(key, vectorType, scale);
          for (int64_t row = 0; row < tile.rows; ++row) {
            Value query = loadPadded(att.q, qAt(tile, index(row), index(offset)), att.headDim - offset);
            sums[row] = vector::FMAOp::create(b, loc, query, key, sums[row]);
          }
        }
        for (int64_t row = 0; row < tile.rows; ++row)
          storeVector(sums[row], products, {index(row), lane, zero});
      });
      for (int64_t row = 0; row < tile.rows; ++row) {
        SmallVector<Value> ofLanes;
        for (int64_t lane = 0; lane < lanes; ++lane)
          ofLanes.push_back(loadVector(vectorType, products, {index(row), index(lane), zero}));
        storeVector(sumAcross(ofLanes), scores, {index(row), first});
      }
    });
  }

  /// How many rows are on their way at a time.
  int64_t fetchedRows() { return std::max<int64_t>(1, 8192 / rowBytes(att.k)); }

  static int64_t rowBytes(Value cache) {
    auto type = cast<MemRefType>(cache.getType());
    return type.getDimSize(3) * type.getElementTypeBitWidth() / 8;
  }

  void fetchRow(Value cache, Value kvHead, Value row) {
    constexpr int64_t lineBytes = 64;
    int64_t elementBytes = cast<MemRefType>(cache.getType()).getElementTypeBitWidth() / 8;
    for (int64_t byte = 0; byte < rowBytes(cache); byte += lineBytes)
      memref::PrefetchOp::create(b, loc, cache, ValueRange{att.layer, kvHead, row, index(byte / elementBytes)},
                                 /*isWrite=*/false, /*localityHint=*/2, /*isDataCache=*/true);
  }

  /// Fetches the first rows of K and V in [begin, end): a unit has too few for the hardware to run ahead.
  void fetchFirst(Value kvHead, Value begin, Value end) {
    for (Value cache : {att.k, att.v})
      loop(begin, min(end, add(begin, fetchedRows())), 1, [&](Value row) { fetchRow(cache, kvHead, row); });
  }

  /// Beside the row at `place`, fetches one that is read later, in this range of positions or in the next one.
  void fetchAhead(Value cache, const PositionBlock &block, Value place) {
    if (!block.leads)
      return;
    Value row = add(place, fetchedRows());
    Value isFilled = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ule, row, att.position);
    scf::IfOp::create(b, loc, isFilled, [&](OpBuilder &nested, Location) {
      within(nested, [&] { fetchRow(cache, block.kvHead, row); });
    });
  }

  /// A full vector of which only the first `left` elements are read; zeros past them.
  Value loadPadded(Value buffer, ValueRange indices, int64_t left) {
    auto type = VectorType::get(lanes, cast<MemRefType>(buffer.getType()).getElementType());
    if (left >= lanes)
      return loadVector(type, buffer, indices);
    Value mask = vector::ConstantMaskOp::create(b, loc, VectorType::get(lanes, b.getI1Type()), ArrayRef<int64_t>{left});
    Value zeros = arith::ConstantOp::create(b, loc, b.getZeroAttr(type));
    return vector::MaskedLoadOp::create(b, loc, type, buffer, indices, mask, zeros);
  }

  /// What numbers out of a cache (a vector or a scalar) stand for, as `type`; `scale` as scaleOf gives it.
  Value widen(Value stored, Type type, Value scale) {
    if (stored.getType() == type)
      return stored;
    if (!scale)
      return arith::ExtFOp::create(b, loc, type, stored);
    Value number = arith::SIToFPOp::create(b, loc, type, stored);
    auto vector = dyn_cast<VectorType>(type);
    return arith::MulFOp::create(b, loc, number, vector ? splat(scale, vector) : scale);
  }

  /// The scale of a row of an i8 cache; null for caches of floats.
  Value scaleOf(Value cache, Value kvHead, Value place) {
    if (!cast<MemRefType>(cache.getType()).getElementType().isInteger(8))
      return {};
    Value bytes =
        loadVector(VectorType::get(scaleBytes, b.getI8Type()), cache, {att.layer, kvHead, place, index(att.headDim)});
    Value scale = vector::BitCastOp::create(b, loc, VectorType::get(1, f32), bytes);
    return vector::ExtractOp::create(b, loc, scale, ArrayRef<int64_t>{0});
  }

  /// scores[r, j] = q[r] . k[j], vectors along the positions of the transposed block; the tile stays in registers.
  void scoreByColumns(const RowTile &tile) {
    constexpr int64_t width = 2; // vectors of positions at a time
    int64_t unroll = att.headDim % 4 == 0 ? 4 : att.headDim % 2 == 0 ? 2 : 1;
    for (int64_t first = 0; first < positions / lanes; first += width) {
      SmallVector<Value> start(tile.rows * width, constant(0.0f, vectorType));
      Carried products = loop(zero, index(att.headDim), unroll, start, [&](Value base, ValueRange carried) {
        Carried next(carried);
        for (int64_t u = 0; u < unroll; ++u) {
          Value dim = add(base, u);
          SmallVector<Value> keys;
          for (int64_t v = 0; v < width; ++v)
            keys.push_back(loadVector(vectorType, transposedK, {dim, index((first + v) * lanes)}));
          for (int64_t row = 0; row < tile.rows; ++row) {
            Value query = splat(load(att.q, qAt(tile, index(row), dim)), vectorType);
            for (int64_t v = 0; v < width; ++v)
              next[row * width + v] = vector::FMAOp::create(b, loc, query, keys[v], next[row * width + v]);
          }
        }
        return next;
      });
      for (int64_t row = 0; row < tile.rows; ++row)
        for (int64_t v = 0; v < width; ++v)
          storeVector(products[row * width + v], scores, {index(row), index((first + v) * lanes)});
    }
  }

  void attend(const RowTile &tile, const PositionBlock &block) {
    loop(zero, index(tile.rows), 1, [&](Value row) {
      softmaxRow(row, add(tile.state, row), block.count, tile.alongHeads ? block.limit : add(block.limit, row));
    });
    addWeightedValues(tile, block);
  }

  /// The online softmax of one row of `count` scores, of which it attends to the first `limit`: leaves the weights p in
  /// `scores` and a in `alphas`.
  void softmaxRow(Value row, Value state, Value count, Value limit) {
    auto integers = VectorType::get(lanes, b.getI32Type());
    Value bounds = splat(arith::IndexCastOp::create(b, loc, b.getI32Type(), limit), integers);
    SmallVector<int32_t> numbers = llvm::to_vector(llvm::seq<int32_t>(0, lanes));
    Value laneNumbers = arith::ConstantOp::create(b, loc, DenseElementsAttr::get(integers, ArrayRef<int32_t>(numbers)));
    Value scale = constant(att.scale, vectorType), masked = splat(minusInfinity, vectorType);
    Value highest = forScores(count, masked, [&](Value first, Value sofar) {
      Value start = splat(arith::IndexCastOp::create(b, loc, b.getI32Type(), first), integers);
      Value number = arith::AddIOp::create(b, loc, laneNumbers, start);
      Value visible = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, number, bounds);
      Value score = loadVector(vectorType, scores, {row, first});
      score = arith::SelectOp::create(b, loc, visible, arith::MulFOp::create(b, loc, score, scale), masked);
      storeVector(score, scores, {row, first});
      return larger(score, sofar);
    });
    Value before = load(maxima, state);
    Value after = larger(largestLane(highest), before);
    Value afters = splat(after, vectorType);
    Value alpha = scalarExpOfNonPositive(arith::SubFOp::create(b, loc, before, after));
    Value total = forScores(count, constant(0.0f, vectorType), [&](Value first, Value sofar) -> Value {
      Value score = loadVector(vectorType, scores, {row, first});
      Value weight = expOfNonPositive(arith::SubFOp::create(b, loc, score, afters));
      storeVector(weight, scores, {row, first});
      return arith::AddFOp::create(b, loc, sofar, weight);
    });
    Value sum = vector::ReductionOp::create(b, loc, vector::CombiningKind::ADD, total);
    Value kept = arith::MulFOp::create(b, loc, load(sums, state), alpha);
    store(arith::AddFOp::create(b, loc, kept, sum), sums, state);
    store(after, maxima, state);
    store(alpha, alphas, row);
  }

  /// Goes through the vectors of a row of scores: in decode, where most blocks of a short cache are not full, as far as
  /// `count`; else, unrolled, through all.
  Value forScores(Value count, Value start, function_ref<Value(Value first, Value carried)> body) {
    if (att.decodes)
      return loop(zero, count, lanes, start,
                  [&](Value first, ValueRange carried) { return Carried{body(first, carried[0])}; })[0];
    for (int64_t first = 0; first < positions; first += lanes)
      start = body(index(first), start);
    return start;
  }

  /// out[r] = a[r] * out[r] + sum_j p[r, j] * v[j], over groups of vectors of head_dim that fit the registers.
  void addWeightedValues(const RowTile &tile, const PositionBlock &block) {
    SmallVector<Chunk> parts = chunks();
    size_t width = std::max<int64_t>(1, 2 * mostTileRows / tile.rows);
    for (size_t first = 0; first < parts.size(); first += width) {
      ArrayRef<Chunk> group = ArrayRef(parts).slice(first, std::min(width, parts.size() - first));
      SmallVector<Value> start;
      for (int64_t row = 0; row < tile.rows; ++row) {
        Value alpha = load(alphas, index(row));
        for (const Chunk &chunk : group) {
          Value before = loadVector(chunk.type, accumulator, outAt(tile, index(row), index(chunk.offset)));
          start.push_back(arith::MulFOp::create(b, loc, before, splat(alpha, chunk.type)));
        }
      }
      Carried results = loop(zero, block.count, 1, start, [&](Value j, ValueRange carried) {
        Carried next(carried);
        SmallVector<Value> values;
        if (first == 0)
          fetchAhead(att.v, block, add(block.start, j));
        if (widenedV)
          for (const Chunk &chunk : group)
            values.push_back(loadVector(chunk.type, widenedV, {j, index(chunk.offset)}));
        else
          values = valuesAt(block.kvHead, add(block.start, j), group);
        for (int64_t row = 0; row < tile.rows; ++row) {
          Value weight = load(scores, {index(row), j});
          for (auto [number, chunk] : llvm::enumerate(group)) {
            Value &sum = next[row * group.size() + number];
            sum = vector::FMAOp::create(b, loc, splat(weight, chunk.type), values[number], sum);
          }
        }
        return next;
      });
      for (int64_t row = 0; row < tile.rows; ++row)
        for (auto [number, chunk] : llvm::enumerate(group))
          storeVector(results[row * group.size() + number], accumulator, outAt(tile, index(row), index(chunk.offset)));
    }
  }

  /// A row of V, in vectors.
  SmallVector<Value> valuesAt(Value kvHead, Value place, ArrayRef<Chunk> parts) {
    Value scale = scaleOf(att.v, kvHead, place);
    return llvm::map_to_vector(parts, [&](const Chunk &chunk) {
      auto stored = VectorType::get(chunk.type.getShape(), cast<MemRefType>(att.v.getType()).getElementType());
      return widen(loadVector(stored, att.v, {att.layer, kvHead, place, index(chunk.offset)}), chunk.type, scale);
    });
  }

  //===--------------------------------------------------------------------===//
  // What a block of queries shares: K transposed, V widened
  //===--------------------------------------------------------------------===//

  void widenV(Value kvHead, Value start, Value count) {
    SmallVector<Chunk> parts = chunks();
    loop(zero, count, 1, [&](Value j) {
      for (auto [chunk, value] : llvm::zip_equal(parts, valuesAt(kvHead, add(start, j), parts)))
        storeVector(value, widenedV, {j, index(chunk.offset)});
    });
  }

  /// transposedK[d, j] = k[start + j, d]. Past `count` it repeats the last position: those scores are masked.
  void transposeK(Value kvHead, Value start, Value count) {
    Value last = add(start, sub(count, one));
    loop(zero, index(positions), lanes, [&](Value group) {
      SmallVector<Value> rows, scales;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        rows.push_back(min(add(add(start, group), lane), last));
        scales.push_back(scaleOf(att.k, kvHead, rows.back()));
      }
      auto stored = VectorType::get(lanes, cast<MemRefType>(att.k.getType()).getElementType());
      int64_t whole = att.headDim - att.headDim % lanes;
      loop(zero, index(whole), lanes, [&](Value dim) {
        SmallVector<Value> square;
        for (auto [row, scale] : llvm::zip_equal(rows, scales))
          square.push_back(widen(loadVector(stored, att.k, {att.layer, kvHead, row, dim}), vectorType, scale));
        transposeSquare(square);
        for (auto [lane, vector] : llvm::enumerate(square))
          storeVector(vector, transposedK, {add(dim, lane), group});
      });
      loop(index(whole), index(att.headDim), 1, [&](Value dim) {
        for (auto [lane, row] : llvm::enumerate(rows))
          store(widen(load(att.k, {att.layer, kvHead, row, dim}), f32, scales[lane]), transposedK,
                {dim, add(group, lane)});
      });
    });
  }
};

struct AttentionVectorize : buddy::impl::AttentionVectorizeBase<AttentionVectorize> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    auto options = function->getAttrOfType<DictionaryAttr>("buddy.attention");
    if (!options || function.isExternal())
      return;
    FailureOr<Target> target = Target::get(function);
    FailureOr<Attention> attention = matchAttention(function, options);
    if (failed(target) || failed(attention))
      return signalPassFailure();
    replaceBody(function, [&] { AttentionEmitter(function, *attention, *target).emit(); });
    function->removeAttr("buddy.attention");
    if (attention->decodes)
      function->setAttr("buddy.decodes", UnitAttr::get(&getContext()));
  }
};

} // namespace
