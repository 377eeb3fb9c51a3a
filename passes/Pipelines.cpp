//===- Pipelines.cpp - The named pipelines --------------------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;

namespace {

struct PipelineOptions : PassPipelineOptions<PipelineOptions> {
  Option<bool> fuse{*this, "fuse", llvm::cl::desc("Fuse chains of elementwise ops"), llvm::cl::init(true)};
  Option<bool> pack{*this, "pack", llvm::cl::desc("Compute on packed weights in place; without it they are unpacked"),
                    llvm::cl::init(true)};
  Option<bool> vectorize{*this, "vectorize", llvm::cl::desc("Vectorise matmuls and elementwise loops"),
                         llvm::cl::init(true)};
  Option<bool> attention{*this, "attention", llvm::cl::desc("Replace attention functions by the blocked kernel"),
                         llvm::cl::init(true)};
  Option<bool> parallelize{*this, "parallelize", llvm::cl::desc("Run outer loops on several threads"),
                           llvm::cl::init(true)};
  Option<bool> memoryPlan{*this, "memory-plan", llvm::cl::desc("Lay buffers out in the caller's arena"),
                          llvm::cl::init(true)};
  Option<bool> internalize{*this, "internalize", llvm::cl::desc("Give private functions internal linkage"),
                           llvm::cl::init(true)};
  Option<bool> group{*this, "group", llvm::cl::desc("Run matmuls with the same input in one parallel loop"),
                     llvm::cl::init(true)};
  Option<bool> profile{*this, "profile", llvm::cl::desc("Report every outer loop to the program"),
                       llvm::cl::init(true)};
};

/// Appends a textual list of passes. Pass names are checked here, at the first use of a pipeline.
void add(OpPassManager &pm, StringRef passes) {
  std::string message;
  llvm::raw_string_ostream stream(message);
  if (failed(parsePassPipeline(passes, pm, stream)))
    llvm::report_fatal_error(llvm::Twine("buddy pipeline: ") + message, /*gen_crash_diag=*/false);
}

/// NAME.mlir -> linalg on tensors, composites decomposed, weights read in their panels.
void addTensorPasses(OpPassManager &pm, const PipelineOptions &options) {
  add(pm, "func.func(tosa-make-broadcastable,tosa-to-linalg-named),canonicalize");
  add(pm, "func.func(tosa-to-linalg,tosa-to-arith{include-apply-rescale=true},tosa-to-tensor),tosa-to-scf");
  add(pm, "canonicalize,cse,func.func(fold-dynamic-broadcast),canonicalize,cse");
  if (options.pack)
    add(pm, "func.func(fold-packed-weights,fold-quantized-weights)");
  add(pm, "func.func(decompose-composites),canonicalize,cse");
  if (options.fuse)
    add(pm, "func.func(elementwise-fusion),canonicalize,cse");
}

/// Tensors -> buffers. Caches and destinations stay in place; entry points return nothing.
void addBufferisationPasses(OpPassManager &pm) {
  add(pm, "widen-booleans,canonicalize,cse");
  add(pm, "func.func(unshare-destinations),eliminate-empty-tensors,empty-tensor-to-alloc-tensor");
  add(pm, "one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map}");
  add(pm, "canonicalize,cse,drop-equivalent-buffer-results,canonicalize,cse,drop-entry-point-results");
  add(pm, "func.func(forward-destinations)");
}

/// linalg on buffers -> loops, vectors; temporaries move to the arena, others are freed after their last use.
void addLoopPasses(OpPassManager &pm, const PipelineOptions &options) {
  if (options.attention)
    add(pm, "func.func(attention-vectorize)");
  if (options.vectorize)
    add(pm, options.group ? "func.func(quantize-vectorize,matmul-vectorize,generic-vectorize)"
                          : "func.func(quantize-vectorize,matmul-vectorize{group=false},generic-vectorize)");
  else
    add(pm, "func.func(generic-vectorize{vectorize=false})");
  if (options.attention)
    add(pm, "prefetch-caches");
  // What a thread allocates on its stack for each turn of a parallel loop, a sequential loop would pile up.
  if (!options.parallelize)
    add(pm, "func.func(scf-parallel-for-to-nested-fors,buffer-loop-hoisting)");
  add(pm, options.memoryPlan ? "canonicalize,cse,plan-memory" : "plan-memory{place=false}");
  add(pm, "func.func(vector-math-approximation,deallocate-local-buffers,optimize-allocation-liveness)");
  add(pm, "canonicalize,cse,loop-invariant-code-motion");
  if (options.profile)
    add(pm, "profile-regions");
}

/// Loops -> the LLVM dialect, with parallel loops as OpenMP.
void addLLVMPasses(OpPassManager &pm) {
  // Conversions from and to bf16, and f16 where there are no instructions, become integer arithmetic: not every
  // compiler's library has them as functions.
  add(pm, "arith-expand{include-bf16=true},expand-half-conversions");
  // Without the canonicalisation an alloca_scope with several blocks would not lower.
  add(pm, "convert-scf-to-openmp,drop-region-barriers");
  add(pm, "canonicalize,convert-vector-to-scf,expand-strided-metadata,lower-affine");
  add(pm, "convert-math-to-llvm,convert-math-to-libm,finalize-memref-to-llvm,convert-scf-to-cf");
  add(pm, "convert-vector-to-llvm{reassociate-fp-reductions},finalize-memref-to-llvm");
  add(pm, "convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,convert-openmp-to-llvm");
  add(pm, "convert-index-to-llvm,convert-ub-to-llvm,reconcile-unrealized-casts,canonicalize,cse");
}

void buildLowerToLoops(OpPassManager &pm, const PipelineOptions &options) {
  addTensorPasses(pm, options);
  addBufferisationPasses(pm);
  addLoopPasses(pm, options);
}

void buildLowerToLLVM(OpPassManager &pm, const PipelineOptions &options) {
  buildLowerToLoops(pm, options);
  if (options.internalize)
    add(pm, "internalize-private-functions");
  addLLVMPasses(pm);
}

} // namespace

void mlir::buddy::registerPipelines() {
  static PassPipelineRegistration<PipelineOptions> loops(
      "buddy-lower-to-loops", "From what the importer writes to loops and vectors on buffers", buildLowerToLoops);
  static PassPipelineRegistration<PipelineOptions> llvm(
      "buddy-lower-to-llvm", "From what the importer writes to the LLVM dialect with OpenMP", buildLowerToLLVM);
}
