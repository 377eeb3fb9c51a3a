//===- Target.cpp - The target that a module is compiled for --------------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#include "Target.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::buddy;

FailureOr<Target> Target::get(Operation *op) {
  Target target;
  auto module = isa<ModuleOp>(op) ? cast<ModuleOp>(op) : op->getParentOfType<ModuleOp>();
  auto entries = module ? module->getAttrOfType<DictionaryAttr>("buddy.target") : DictionaryAttr();
  if (!entries)
    return target;
  auto read = [&](StringRef name, int64_t &value, int64_t least, int64_t most) -> LogicalResult {
    Attribute entry = entries.get(name);
    if (!entry)
      return success();
    auto number = dyn_cast<IntegerAttr>(entry);
    if (!number || number.getInt() < least || number.getInt() > most)
      return emitError(module.getLoc()) << "buddy.target: '" << name << "' is " << entry << ", but an integer from "
                                        << least << " to " << most << " is needed";
    value = number.getInt();
    return success();
  };
  int64_t convertsHalf = target.convertsHalf;
  if (failed(read("vector_bits", target.vectorBits, 64, 4096)) ||
      failed(read("registers", target.registers, 8, 1024)) || failed(read("panel", target.panel, 1, 4096)) ||
      failed(read("tile_rows", target.tileRows, 1, 32)) || failed(read("converts_half", convertsHalf, 0, 1)))
    return failure();
  target.convertsHalf = convertsHalf != 0;
  if (Attribute entry = entries.get("int8_dot")) {
    auto name = dyn_cast<StringAttr>(entry);
    auto form = llvm::StringSwitch<std::optional<Int8Dot>>(name ? name.getValue() : StringRef())
                    .Case("none", Int8Dot::none)
                    .Case("ssse3", Int8Dot::ssse3)
                    .Case("avx2", Int8Dot::avx2)
                    .Case("avx512bw", Int8Dot::avx512bw)
                    .Case("avx512vnni", Int8Dot::avx512vnni)
                    .Case("neon_dotprod", Int8Dot::neonDotprod)
                    .Default(std::nullopt);
    if (!form)
      return emitError(module.getLoc()) << "buddy.target: 'int8_dot' is " << entry
                                        << ", but none, ssse3, avx2, avx512bw, avx512vnni or neon_dotprod is needed";
    target.int8Dot = *form;
  }
  if (!llvm::isPowerOf2_64(target.vectorBits))
    return emitError(module.getLoc()) << "buddy.target: 'vector_bits' is " << target.vectorBits
                                      << ", but a power of two is needed";
  return target;
}

int64_t Target::lanes(Type type) const {
  int64_t bits = type.isIndex() ? 64 : type.getIntOrFloatBitWidth();
  return std::max<int64_t>(1, vectorBits / std::max<int64_t>(8, bits));
}
