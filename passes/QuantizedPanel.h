//===- QuantizedPanel.h - What tiles read of a quantised panel --*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_QUANTIZEDPANEL_H
#define BUDDY_QUANTIZEDPANEL_H

#include "IntegerDot.h"
#include "QuantizedContraction.h"

namespace mlir::buddy {

/// Reads the weights of a panel in the form in which tiles take them: factors of integer dot products, scales and
/// minima in f32. They are taken out of the panel's blocks for each tile; or the whole panel is unpacked once into
/// memory of the thread's own, and all tiles that go over it read them there. Both come from the same functions
/// (`storedFactors`, `storedScale`, `storedMinimum`), which are what a format of weights has of its own.
class QuantizedPanel {
public:
  /// `dot` is null for activations in f32: then there are no factors, and nothing is unpacked.
  QuantizedPanel(const QuantizedContraction &contraction, const IntegerDot *dot, int64_t lanes);

  /// What has to be computed before the loops over panels.
  void prepare(OpBuilder &b, Location loc);

  /// Vectors in a panel.
  int64_t vectors() const { return contraction.panelWidth() / lanes; }

  /// The bytes that `unpack` fills; 0: it has nothing to do.
  int64_t unpackedBytes() const;

  /// Unpacks a panel into `scratch`, aligned to 64.
  void unpack(OpBuilder &b, Location loc, Value panel, Value scratch);

  /// Whether the functions below read what `unpack` has written, or the blocks.
  void readUnpacked(bool isUnpacked) { readsUnpacked = isUnpacked; }

  /// What the integers in factors are too large by. Unpacked ones have the format's zero subtracted, if they may be
  /// signed.
  int64_t excess() const;

  /// The factors of a quad; each for the vectors [first, first + count).
  SmallVector<SmallVector<QuadFactor>> factors(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                               int64_t first, int64_t count) const;

  /// The scales and minima of a group, lanes of f32.
  Value scale(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const;
  Value minimum(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const;

  /// The stored bytes of a quad, 4 x lanes of i8.
  Value storedQuad(OpBuilder &b, Location loc, Value panel, Value group, Value quad, int64_t vector) const;

  /// What the integers of a quad have past 4 bits, at its place: for either half, 4 x lanes of i8; nothing for integers
  /// of 4 and 8 bits.
  SmallVector<Value> storedUpper(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                 int64_t vector) const;

  /// Fetches a byte that is `distance` behind the first one of a group. Past the group's end is the next one.
  void prefetch(OpBuilder &b, Location loc, Value panel, Value group, Value distance, unsigned locality) const;

  /// Bytes of a block in the weights file.
  int64_t blockBytes() const;

private:
  /// A panel in memory of the thread's own.
  struct Unpacked {
    Value integers;       ///< (G * quads) x the bytes of a quad's factors: first factor, all vectors, second...
    Value scales, minima; ///< G x R, f32
    SmallVector<QuadFactor> forms; ///< the factors of a quad, without weights
    VectorType factor;
  };

  QuantizedContraction contraction;
  const IntegerDot *dot;
  int64_t lanes;
  Value bytes, high; ///< P x blocks (x groups of a block) x the integers of a group, and their bits past 4
  Unpacked unpacked;
  bool readsUnpacked = false;

  SmallVector<QuadFactor> storedFactors(OpBuilder &b, Location loc, Value panel, Value group, Value quad,
                                        int64_t vector) const;
  Value storedScale(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const;
  Value storedMinimum(OpBuilder &b, Location loc, Value panel, Value group, int64_t vector) const;
  SmallVector<Value> place(OpBuilder &b, Location loc, Value panel, Value group, Value last) const;
  Value scaled(OpBuilder &b, Location loc, Value halves, Value factors, bool isSigned, ArrayRef<Value> place) const;
  Value halves(OpBuilder &b, Location loc, Value buffer, ValueRange indices) const;
  Value moveBits(OpBuilder &b, Location loc, Value bytes, Value shift, int64_t width) const;

  bool unpacksSigned() const { return dot && dot->takesSigned(); }
  int64_t factorBytes() const { return 4 * lanes; } ///< of one vector
  int64_t quadBytes() const { return dot->factorsPerQuad() * vectors() * factorBytes(); }
  int64_t integerBytes() const { return contraction.groups() * contraction.quads() * quadBytes(); }
  int64_t fieldBytes() const { return contraction.groups() * contraction.panelWidth() * 4; }
  Value flatQuad(OpBuilder &b, Location loc, Value group, Value quad) const;
  void unpackFields(OpBuilder &b, Location loc, Value panel, Value group, const Unpacked &into) const;
  void unpackQuad(OpBuilder &b, Location loc, Value panel, Value group, Value quad, Unpacked &into) const;
};

} // namespace mlir::buddy

#endif // BUDDY_QUANTIZEDPANEL_H
