//===- TokenSizes.h - Sizes as functions of the number of tokens ----------===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_TOKENSIZES_H
#define BUDDY_TOKENSIZES_H

#include "Passes.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <optional>

namespace mlir::buddy {

/// perToken * tokens + constant.
struct TokenSize {
  int64_t perToken = 0;
  int64_t constant = 0;

  bool operator==(const TokenSize &other) const { return perToken == other.perToken && constant == other.constant; }
};

/// Sizes of a module's buffers in terms of the number of tokens: dimension 1 of an entry point's ids. Sizes are
/// followed through views, loops and into private functions, all of whose calls must agree.
class TokenSizes {
public:
  explicit TokenSizes(ModuleOp module);

  /// The bytes that an allocation takes; nullopt where they don't depend on the number of tokens alone, linearly.
  std::optional<TokenSize> bytesOf(memref::AllocOp allocation);

private:
  std::optional<TokenSize> valueOf(Value value, unsigned depth = 0);
  std::optional<TokenSize> dimOf(Value buffer, int64_t dim, unsigned depth = 0);
  std::optional<TokenSize> foldOf(OpFoldResult value, unsigned depth);
  /// What `find` says of an argument of a private function, if it says the same for every call.
  std::optional<TokenSize> atCalls(BlockArgument argument, llvm::function_ref<std::optional<TokenSize>(Value)> find);

  ModuleOp module;
  DenseMap<StringAttr, SmallVector<func::CallOp>> calls;
};

} // namespace mlir::buddy

#endif // BUDDY_TOKENSIZES_H
