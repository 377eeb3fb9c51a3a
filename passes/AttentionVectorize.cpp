#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "Passes.h"
namespace mlir::buddy {
#define GEN_PASS_DEF_ATTENTIONVECTORIZE
#include "Passes.h.inc"
}
using namespace mlir;
namespace { struct AttentionVectorize : buddy::impl::AttentionVectorizeBase<AttentionVectorize> { using AttentionVectorizeBase::AttentionVectorizeBase; void runOnOperation() override {} }; }
