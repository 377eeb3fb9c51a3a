//===- InternalizePrivateFunctions.cpp - Private functions stay inside ----===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_INTERNALIZEPRIVATEFUNCTIONS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

struct InternalizePrivateFunctions : buddy::impl::InternalizePrivateFunctionsBase<InternalizePrivateFunctions> {
  void runOnOperation() override {
    auto internal = LLVM::LinkageAttr::get(&getContext(), LLVM::Linkage::Internal);
    for (auto function : getOperation().getOps<func::FuncOp>())
      if (function.isPrivate() && !function.isExternal() && !function->hasAttr("llvm.linkage"))
        function->setAttr("llvm.linkage", internal);
  }
};

} // namespace
