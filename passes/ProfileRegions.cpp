//===- ProfileRegions.cpp - Named regions for a profile -------------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Passes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"

namespace mlir::buddy {
#define GEN_PASS_DEF_PROFILEREGIONS
#include "Passes.h.inc"
} // namespace mlir::buddy

using namespace mlir;

namespace {

constexpr StringLiteral beginName = "buddy_profile_begin", endName = "buddy_profile_end";

/// The names in a location, outermost first: of an op, or of all ops that were fused into one.
void collectNames(Location location, llvm::SmallSetVector<StringRef, 4> &names) {
  if (auto named = dyn_cast<NameLoc>(location))
    names.insert(named.getName().getValue());
  else if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location part : fused.getLocations())
      collectNames(part, names);
  else if (auto call = dyn_cast<CallSiteLoc>(location))
    collectNames(call.getCallee(), names);
}

/// What passes have noted of an op in its location: bytes of weights, operations for each row; none where they have
/// not.
ArrayRef<int64_t> collectWork(Location location) {
  auto fused = dyn_cast<FusedLoc>(location);
  if (!fused)
    return {};
  if (auto work = dyn_cast_or_null<DenseI64ArrayAttr>(fused.getMetadata()))
    return work.asArrayRef();
  for (Location part : fused.getLocations())
    if (ArrayRef<int64_t> work = collectWork(part); !work.empty())
      return work;
  return {};
}

/// Replaces the numbers among the parts of a path by a star: a private function serves every layer.
std::string withoutNumbers(StringRef path) {
  std::string result;
  while (!path.empty()) {
    size_t length = std::min(path.find_first_of("./ "), path.size());
    StringRef part = path.take_front(length);
    result += !part.empty() && llvm::all_of(part, llvm::isDigit) ? StringRef("*") : part;
    result += path.substr(length, 1);
    path = path.drop_front(std::min(length + 1, path.size()));
  }
  return result;
}

std::string nameOf(Operation *op, func::FuncOp function) {
  llvm::SmallSetVector<StringRef, 4> names;
  collectNames(op->getLoc(), names);
  std::string name = names.empty() ? function.getName().str() : llvm::join(names, " + ");
  std::replace(name.begin(), name.end(), '\n', ' ');
  if (function.isPrivate())
    name = withoutNumbers(name);
  for (int64_t number : collectWork(op->getLoc()))
    name += '\t' + std::to_string(number);
  return name;
}

struct ProfileRegions : buddy::impl::ProfileRegionsBase<ProfileRegions> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    SmallVector<std::pair<Operation *, func::FuncOp>> regions;
    StringRef entry;
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function->hasAttr("buddy.entry"))
        entry = function.getName();
      function.walk<WalkOrder::PreOrder>([&](Operation *op) {
        if (!isa<scf::ParallelOp, scf::ForOp>(op))
          return WalkResult::advance();
        // A loop over layers is no region; what stands in the called function is.
        if (op->walk([](func::CallOp) { return WalkResult::interrupt(); }).wasInterrupted())
          return WalkResult::advance();
        regions.emplace_back(op, function);
        return WalkResult::skip();
      });
    }
    if (entry.empty())
      return;
    SmallVector<std::string> names;
    std::string table = (entry + "_profile_names").str();
    for (auto [op, function] : regions)
      wrap(op, function, table, names);
    declare(module, beginName);
    declare(module, endName);
    defineNames(module, table, names);
  }

private:
  /// Regions of the same name have the same number.
  static void wrap(Operation *op, func::FuncOp function, StringRef table, SmallVectorImpl<std::string> &names) {
    std::string name = nameOf(op, function);
    int64_t number = std::distance(names.begin(), llvm::find(names, name));
    if (number == static_cast<int64_t>(names.size()))
      names.push_back(name);
    OpBuilder b(op);
    auto pointer = LLVM::LLVMPointerType::get(b.getContext());
    Value address = LLVM::AddressOfOp::create(b, op->getLoc(), pointer, table);
    Value id = arith::ConstantIntOp::create(b, op->getLoc(), number, 64);
    func::CallOp::create(b, op->getLoc(), beginName, TypeRange(), ValueRange{address, id});
    b.setInsertionPointAfter(op);
    func::CallOp::create(b, op->getLoc(), endName, TypeRange(), ValueRange{address, id});
  }

  static void declare(ModuleOp module, StringRef name) {
    auto b = OpBuilder::atBlockBegin(module.getBody());
    auto function = func::FuncOp::create(
        b, module.getLoc(), name, b.getFunctionType({LLVM::LLVMPointerType::get(b.getContext()), b.getI64Type()}, {}));
    function.setPrivate();
  }

  /// One line for each region, then a zero.
  static void defineNames(ModuleOp module, StringRef table, ArrayRef<std::string> names) {
    std::string text;
    for (const std::string &name : names)
      text += name + '\n';
    text += '\0';
    auto b = OpBuilder::atBlockBegin(module.getBody());
    auto type = LLVM::LLVMArrayType::get(b.getI8Type(), text.size());
    LLVM::GlobalOp::create(b, module.getLoc(), type, /*isConstant=*/true, LLVM::Linkage::External, table,
                           b.getStringAttr(text));
  }
};

} // namespace
