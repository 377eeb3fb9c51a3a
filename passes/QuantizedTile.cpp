//===- QuantizedTile.cpp - Register tiles over quantised panels -----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "QuantizedTile.h"
#include "IntegerDot.h"
#include "QuantizedInput.h"
#include "QuantizedPanel.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;
using namespace mlir::buddy;

namespace {

/// Products (of one vector each) that are written one after the other before a loop takes over.
constexpr int64_t longestUnrolled = 256;

class QuantizedTile : public TileKernel {
public:
  QuantizedTile(const PackedContraction &packed, const QuantizedContraction &contraction, const Target &target)
      : TileKernel(packed.op), packed(packed), contraction(contraction) {
    int64_t panel = contraction.panelWidth();
    bool isInteger = contraction.hasIntegerActivations();
    lanes = isInteger ? integerDotLanes(target) : std::max<int64_t>(1, target.vectorBits / 32);
    while (panel % lanes != 0)
      lanes /= 2;
    if (isInteger)
      dot = makeIntegerDot(target.int8Dot, contraction.bits, contraction.hasWideActivations(), lanes);
    sumType = VectorType::get(lanes, b.getF32Type());
    wordType = VectorType::get(lanes, b.getI32Type());
    int64_t vectors = panel / lanes;
    columns = vectors <= 4 ? vectors : vectors % 2 == 0 ? 2 : 1;
    // Sums of a group in registers, beside the weights and the activations that meet.
    int64_t sums = target.registers >= 32 ? 24 : 8;
    fullRows = std::max<int64_t>(1, sums / columns);
    weights.emplace(contraction, dot.get(), lanes);
  }

  int64_t tileRows() const override { return fullRows; }

  int64_t rowBytes() const override {
    if (!dot)
      return contraction.depth() * 4;
    return contraction.depth() * (dot->takesPairs() || contraction.hasWideActivations() ? 2 : 1);
  }

  void prepare(OpBuilder &builder, Location location) override {
    moveTo(builder, location);
    weights->prepare(b, loc);
    joinGroups();
    input = QuantizedInput(b, loc, contraction, weights->excess(), dot && dot->takesPairs());
  }

  int64_t scratchBytes() const override { return weights->unpackedBytes(); }

  void preparePanel(OpBuilder &builder, Location location, Value panel, Value scratch) override {
    weights->unpack(builder, location, panel, scratch);
  }

  void emit(OpBuilder &builder, Location location, int64_t rows, Value row, Value panel, bool isPrepared) override {
    moveTo(builder, location);
    weights->readUnpacked(isPrepared);
    firstLineAhead = rows > 1 && aheadIndex ? firstLine() : Value();
    for (int64_t first = 0; first < contraction.panelWidth() / lanes; first += columns)
      emitColumns({rows, row, panel, first});
  }

private:
  /// C[row .. row + rows, panel, first .. first + columns vectors].
  struct Tile {
    int64_t rows;
    Value row, panel;
    int64_t first;
  };

  PackedContraction packed;
  QuantizedContraction contraction;
  std::unique_ptr<IntegerDot> dot; ///< null for activations in f32
  int64_t lanes, columns, fullRows;
  VectorType sumType, wordType;
  std::optional<QuantizedPanel> weights;
  QuantizedInput input;
  Value firstLineAhead; ///< where this tile fetches, in lines from its panel's first one; null: nowhere

  Value splat(VectorType type, Attribute value) {
    return arith::ConstantOp::create(b, loc, DenseElementsAttr::get(type, value));
  }
  Value broadcast(Value scalar) {
    return vector::BroadcastOp::create(b, loc, VectorType::get(lanes, scalar.getType()), scalar);
  }
  Value load(Value buffer, ValueRange indices) { return memref::LoadOp::create(b, loc, buffer, indices); }

  /// Where row `row` + `r` of a buffer begins, and `place` in it, if its rows are laid out as one long one. The rows of
  /// a tile have one address then, and constant distances from there.
  std::pair<Value, Value> placeInRow(Value buffer, const Tile &tile, int64_t r, Value place) {
    auto type = cast<MemRefType>(buffer.getType());
    int64_t width = type.getDimSize(1);
    Value flat = memref::CollapseShapeOp::create(b, loc, buffer, ArrayRef<ReassociationIndices>{{0, 1}});
    Value start = b.createOrFold<arith::MulIOp>(loc, tile.row, constant(width));
    return {flat, add(b.createOrFold<arith::AddIOp>(loc, start, place), r * width)};
  }

  Value loadInRow(Value buffer, const Tile &tile, int64_t r, Value place) {
    if (!cast<MemRefType>(buffer.getType()).getLayout().isIdentity())
      return load(buffer, {add(tile.row, r), place});
    auto [flat, index] = placeInRow(buffer, tile, r, place);
    return load(flat, index);
  }

  /// A loop from 0 to `count` that carries `values`.
  SmallVector<Value> loop(int64_t count, int64_t step, ArrayRef<Value> values,
                          function_ref<void(Value, MutableArrayRef<Value>)> body) {
    auto loop = scf::ForOp::create(b, loc, constant(0), constant(count), constant(step), values,
                                   [&](OpBuilder &nested, Location, Value i, ValueRange carried) {
                                     SmallVector<Value> next(carried);
                                     at(nested, [&] { body(i, next); });
                                     scf::YieldOp::create(nested, loc, next);
                                   });
    return SmallVector<Value>(loop.getResults());
  }

  void emitColumns(const Tile &tile) {
    SmallVector<Value> zeros(tile.rows * columns, splat(sumType, b.getF32FloatAttr(0)));
    SmallVector<Value> sums = loop(contraction.groups(), 1, zeros, [&](Value group, MutableArrayRef<Value> carried) {
      if (firstLineAhead && tile.first == 0)
        fetchLines(tile.panel, group);
      addGroup(tile, group, carried);
    });
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t v = 0; v < columns; ++v) {
        SmallVector<Value> indices = {add(tile.row, r), tile.panel, constant((tile.first + v) * lanes)};
        Value sum = sums[r * columns + v];
        if (!packed.zeroFill)
          sum = arith::AddFOp::create(b, loc, vector::LoadOp::create(b, loc, sumType, contraction.c, indices), sum);
        vector::StoreOp::create(b, loc, sum, contraction.c, indices);
      }
  }

  /// Activations (M, blocks, groups of a block, ...) as (M, G, ...), and their scales.
  void joinGroups() {
    if (!contraction.hasFactors())
      return;
    for (Value *buffer : {&contraction.a, &contraction.aScale}) {
      if (!*buffer)
        continue;
      SmallVector<ReassociationIndices> dims = {{0}, {1, 2}};
      for (int64_t dim = 3; dim < cast<MemRefType>(buffer->getType()).getRank(); ++dim)
        dims.push_back({dim});
      *buffer = memref::CollapseShapeOp::create(b, loc, *buffer, dims);
    }
  }

  /// sums += what one group adds to C.
  void addGroup(const Tile &tile, Value group, MutableArrayRef<Value> sums) {
    SmallVector<Value> products = groupProducts(tile, group);
    SmallVector<Value> scales, minima;
    for (int64_t v = 0; v < columns; ++v) {
      scales.push_back(weights->scale(b, loc, tile.panel, group, tile.first + v));
      if (contraction.minimum)
        minima.push_back(weights->minimum(b, loc, tile.panel, group, tile.first + v));
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      Value aScale = dot ? broadcast(loadInRow(contraction.aScale, tile, r, group)) : Value();
      Value aSum = contraction.minimum ? broadcast(loadInRow(input.sums, tile, r, group)) : Value();
      for (int64_t v = 0; v < columns; ++v) {
        Value &sum = sums[r * columns + v];
        Value product = products[r * columns + v], scale = scales[v];
        if (dot) {
          product = arith::SIToFPOp::create(b, loc, sumType, product);
          scale = arith::MulFOp::create(b, loc, scale, aScale);
        }
        sum = vector::FMAOp::create(b, loc, product, scale, sum);
        if (contraction.minimum)
          sum = vector::FMAOp::create(b, loc, minima[v], aSum, sum);
      }
    }
  }

  /// sum_k a[m, g, k] * (integer(w[p, g, k, j]) - zero), as integers if the activations are.
  SmallVector<Value> groupProducts(const Tile &tile, Value group) {
    VectorType type = dot ? wordType : sumType;
    SmallVector<Value> products;
    for (int64_t r = 0; r < tile.rows; ++r) {
      Value start = weights->excess() != 0 ? broadcast(loadInRow(input.offsets, tile, r, group))
                                           : splat(type, b.getZeroAttr(type.getElementType()));
      products.append(columns, start);
    }
    int64_t quads = contraction.quads();
    if (!dot || dot->narrowCapacity() < quads * dot->factorsPerQuad()) {
      addQuads(tile, group, products);
      return products;
    }
    // Narrow sums hold a whole group.
    auto narrowType = VectorType::get(2 * lanes, b.getI16Type());
    SmallVector<Value> narrow(products.size(), splat(narrowType, b.getI16IntegerAttr(0)));
    addQuads(tile, group, narrow);
    for (auto [product, sum] : llvm::zip_equal(products, narrow))
      product = arith::AddIOp::create(b, loc, product, dot->widen(b, loc, sum));
    return products;
  }

  /// sums += the products of all quads of a group.
  void addQuads(const Tile &tile, Value group, SmallVector<Value> &sums) {
    int64_t quads = contraction.quads();
    int64_t perQuad = tile.rows * columns * contraction.halves() * (dot ? 1 : 4);
    int64_t unroll = std::clamp<int64_t>(longestUnrolled / perQuad, 1, quads);
    // LLVM would order the additions of a long body anew, one sum after the other, and spill what they share.
    if (dot && !dot->isFused() && tile.rows > 1)
      unroll = 1;
    int64_t looped = unroll == quads ? 0 : quads - quads % unroll;
    if (looped != 0)
      sums = loop(looped, unroll, sums, [&](Value quad, MutableArrayRef<Value> carried) {
        for (int64_t i = 0; i < unroll; ++i)
          addQuad(tile, group, add(quad, i), carried);
      });
    for (int64_t quad = looped; quad < quads; ++quad)
      addQuad(tile, group, constant(quad), sums);
  }

  void addQuad(const Tile &tile, Value group, Value quad, MutableArrayRef<Value> sums) {
    if (!dot)
      return addQuadOfFloats(tile, group, quad, sums);
    prefetchQuad(tile, group, quad);
    SmallVector<SmallVector<QuadFactor>> factors =
        weights->factors(b, loc, tile.panel, group, quad, tile.first, columns);
    if (sums.front().getType() != wordType || dot->narrowCapacity() == 0)
      return multiplyAdd(tile, group, quad, factors, sums);
    // Narrow sums hold a quad, not a group.
    SmallVector<Value> narrow(sums.size());
    multiplyAdd(tile, group, quad, factors, narrow);
    for (auto [sum, part] : llvm::zip_equal(sums, narrow))
      sum = arith::AddIOp::create(b, loc, sum, dot->widen(b, loc, part));
  }

  static constexpr int64_t lineBytes = 64;

  /// Lines of a block, divided among its groups; rounded up.
  int64_t groupLines() const { return llvm::divideCeil(weights->blockBytes(), lineBytes * contraction.blockGroups()); }

  /// Several tiles that go over a panel share the fetching of the next one.
  Value firstLine() {
    int64_t lines = contraction.groups() * groupLines();
    Value share = arith::ShRUIOp::create(b, loc, constant(lines), aheadShift);
    return add(arith::MulIOp::create(b, loc, aheadIndex, share), lines);
  }

  /// Fetches this tile's part of as many lines as a group has. A tile that is alone is fed well enough by the hardware.
  void fetchLines(Value panel, Value group) {
    Value lines = constant(groupLines());
    Value from = arith::MulIOp::create(b, loc, group, lines);
    Value to = arith::AddIOp::create(b, loc, from, lines);
    from = arith::ShRUIOp::create(b, loc, from, aheadShift);
    to = arith::ShRUIOp::create(b, loc, to, aheadShift);
    Value isAlone = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, aheadShift, constant(0));
    to = arith::SelectOp::create(b, loc, isAlone, from, to);
    scf::ForOp::create(b, loc, from, to, constant(1), ValueRange(),
                       [&](OpBuilder &nested, Location, Value line, ValueRange) {
                         at(nested, [&] {
                           line = arith::AddIOp::create(b, loc, line, firstLineAhead);
                           Value place = arith::MulIOp::create(b, loc, line, constant(lineBytes));
                           weights->prefetch(b, loc, panel, constant(0), place,
                                             /*locality=*/2);
                         });
                         scf::YieldOp::create(nested, loc);
                       });
  }

  /// A single row reads each byte once, and too few lines are on their way without help.
  void prefetchQuad(const Tile &tile, Value group, Value quad) {
    constexpr int64_t distance = 4096;
    if (tile.rows > 1)
      return;
    Value start = b.createOrFold<arith::MulIOp>(loc, quad, constant(4 * contraction.panelWidth()));
    for (int64_t v = tile.first; v < tile.first + columns; ++v)
      weights->prefetch(b, loc, tile.panel, group, add(start, 4 * v * lanes + distance), /*locality=*/3);
  }

  /// sums += the products of a quad.
  void multiplyAdd(const Tile &tile, Value group, Value quad, ArrayRef<SmallVector<QuadFactor>> factors,
                   MutableArrayRef<Value> sums) {
    Value first = b.createOrFold<arith::MulIOp>(loc, group, constant(contraction.halves() * contraction.quads()));
    first = b.createOrFold<arith::AddIOp>(loc, first, quad);
    auto rowProducts = [&](int64_t r, const SmallVector<QuadFactor> &factor) {
      Value place = add(first, factor.front().half * contraction.quads());
      Value word = broadcast(loadWord(factor.front().word, tile, r, place));
      for (int64_t v = 0; v < columns; ++v) {
        Value &sum = sums[r * columns + v];
        sum = dot->multiplyAdd(b, loc, sum, factor[v].weights, word);
      }
    };
    if (dot->isFused()) {
      // One factor for all rows, so that few vectors of weights are alive.
      for (const SmallVector<QuadFactor> &factor : factors)
        for (int64_t r = 0; r < tile.rows; ++r)
          rowProducts(r, factor);
      return;
    }
    // All products of a row, one after the other, so that few of them wait to be added.
    for (int64_t r = 0; r < tile.rows; ++r)
      for (const SmallVector<QuadFactor> &factor : factors)
        rowProducts(r, factor);
  }

  /// The activations of a quad of row `r` of the tile, `quad` counted over the row.
  Value loadWord(QuadWord word, const Tile &tile, int64_t r, Value quad) {
    if (word < QuadWord::place0 && !contraction.hasWideActivations())
      return loadInRow(input.words(word), tile, r, quad);
    if (word < QuadWord::place0) {
      Value first = b.createOrFold<arith::MulIOp>(loc, quad, constant(2));
      auto [flat, place] = placeInRow(input.words(word), tile, r, first);
      Value pair = vector::LoadOp::create(b, loc, VectorType::get(2, b.getI16Type()), flat, place);
      Value whole = vector::BitCastOp::create(b, loc, VectorType::get(1, b.getI32Type()), pair);
      return vector::ExtractOp::create(b, loc, whole, 0);
    }
    Value first = b.createOrFold<arith::MulIOp>(loc, quad, constant(4));
    int64_t place = static_cast<int64_t>(word) - static_cast<int64_t>(QuadWord::place0);
    return arith::ExtSIOp::create(b, loc, b.getI32Type(), loadInRow(input.integers, tile, r, add(first, place)));
  }

  void addQuadOfFloats(const Tile &tile, Value group, Value quad, MutableArrayRef<Value> products) {
    prefetchQuad(tile, group, quad);
    auto asWords = [&](Value bytes) { return vector::BitCastOp::create(b, loc, wordType, bytes); };
    SmallVector<Value> words;
    SmallVector<SmallVector<Value>> upper;
    for (int64_t v = tile.first; v < tile.first + columns; ++v) {
      words.push_back(asWords(weights->storedQuad(b, loc, tile.panel, group, quad, v)));
      upper.push_back(weights->storedUpper(b, loc, tile.panel, group, quad, v));
    }
    for (int64_t half = 0; half < contraction.halves(); ++half)
      for (int64_t place = 0; place < 4; ++place) {
        SmallVector<Value> factors;
        for (auto [word, bits] : llvm::zip_equal(words, upper)) {
          Value above = bits.empty() ? Value() : asWords(bits[half]);
          Value integer = integerOfQuad(b, loc, word, above, contraction.nibbles, half, place);
          factors.push_back(arith::SIToFPOp::create(b, loc, sumType, integer));
        }
        for (int64_t r = 0; r < tile.rows; ++r) {
          SmallVector<Value> indices = {add(tile.row, r), group, quad, constant(place)};
          if (contraction.nibbles)
            indices.insert(indices.begin() + 2, constant(half));
          Value activation = broadcast(load(contraction.a, indices));
          for (int64_t v = 0; v < columns; ++v) {
            Value &product = products[r * columns + v];
            product = vector::FMAOp::create(b, loc, factors[v], activation, product);
          }
        }
      }
  }
};

} // namespace

std::unique_ptr<TileKernel> mlir::buddy::makeQuantizedTile(const PackedContraction &packed,
                                                           const QuantizedContraction &contraction,
                                                           const Target &target) {
  return std::make_unique<QuantizedTile>(packed, contraction, target);
}
