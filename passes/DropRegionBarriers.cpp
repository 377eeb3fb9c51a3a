//===- DropRegionBarriers.cpp - One wait at the end of a region -----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/OpenMP/OpenMPDialect.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_DROPREGIONBARRIERS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

/// Whether nothing but the end of the parallel region follows. A reduction's results are read behind the barrier.
bool endsRegion(omp::WsloopOp loop) {
  return isa<omp::ParallelOp>(loop->getParentOp()) && loop->getNextNode() == loop->getBlock()->getTerminator() &&
         loop.getReductionVars().empty() && loop->getParentRegion()->hasOneBlock();
}

struct DropRegionBarriers : buddy::impl::DropRegionBarriersBase<DropRegionBarriers> {
  void runOnOperation() override {
    getOperation().walk([](omp::WsloopOp loop) {
      if (endsRegion(loop))
        loop.setNowait(true);
    });
  }
};

} // namespace
