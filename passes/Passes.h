//===- Passes.h - Every pass and pipeline of buddy-gen --------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_PASSES_H
#define BUDDY_PASSES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace mlir::buddy {

#define GEN_PASS_DECL
#include "Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "Passes.h.inc"

/// Registers `--buddy-lower-to-loops` and `--buddy-lower-to-llvm`.
void registerPipelines();

} // namespace mlir::buddy

#endif // BUDDY_PASSES_H
