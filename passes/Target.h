//===- Target.h - The target that a module is compiled for ----------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TARGET_H
#define BUDDY_TARGET_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"

namespace mlir::buddy {

/// Instructions that add products of 8-bit integers.
enum class Int8Dot {
  none,        ///< plain vector code
  ssse3,       ///< pmaddwd, pmaddubsw on 128 bits
  avx2,        ///< the same on up to 256 bits
  avx512bw,    ///< the same on up to 512 bits
  avx512vnni,  ///< vpdpbusd
  neonDotprod, ///< sdot
};

/// What passes need to know of the target: the module attribute `buddy.target`. Entries that it lacks keep the
/// values below, which suit any x86-64-v3 machine.
struct Target {
  int64_t vectorBits = 256; ///< width of a vector register
  int64_t registers = 16;   ///< number of vector registers
  int64_t panel = 16;       ///< columns of a packed weight's panel (R)
  int64_t tileRows = 6;     ///< rows of a matmul's register tile
  Int8Dot int8Dot = Int8Dot::none;
  bool convertsHalf = true; ///< instructions convert between f16 and f32

  /// Reads the target of the module around `op`. An entry out of range is an error on that module.
  static FailureOr<Target> get(Operation *op);

  /// Elements of `type` in one vector register, at least 1.
  int64_t lanes(Type type) const;
};

} // namespace mlir::buddy

#endif // BUDDY_TARGET_H
