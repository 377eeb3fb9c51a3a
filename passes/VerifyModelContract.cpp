#include "Passes.h"
namespace mlir::buddy {
#define GEN_PASS_DEF_VERIFYMODELCONTRACT
#include "Passes.h.inc"
}
using namespace mlir;
namespace { struct VerifyModelContract : buddy::impl::VerifyModelContractBase<VerifyModelContract> { using VerifyModelContractBase::VerifyModelContractBase; void runOnOperation() override {} }; }
