//===- QuantizedTile.h - Register tiles over quantised panels ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_QUANTIZEDTILE_H
#define BUDDY_QUANTIZEDTILE_H

#include "QuantizedContraction.h"
#include "TileKernel.h"

namespace mlir::buddy {

/// The kernel of a contraction with quantised weights. Activations in i8 or i16: the products of a group are summed as
/// integers, exactly; then
///
///   C[m, p, j] += float(sum) * (s[p, g, j] * aScale[m, g]) + minimum[p, g, j] * aScale[m, g] * sum_k(a[m, g, k])
///
/// where scales and minima are the block's, times the factors of the group if it has any; those products are exact.
///
/// Activations in f32: the group's integers are widened in registers, and the scale is applied to the group's sum.
std::unique_ptr<TileKernel> makeQuantizedTile(const PackedContraction &packed, const QuantizedContraction &contraction,
                                              const Target &target);

} // namespace mlir::buddy

#endif // BUDDY_QUANTIZEDTILE_H
