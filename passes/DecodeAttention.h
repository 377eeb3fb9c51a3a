//===- DecodeAttention.h - Which thread attends to what ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0. See LICENSE for license information.
// SPDX-License-Identifier: Apache-2.0
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_DECODEATTENTION_H
#define BUDDY_DECODEATTENTION_H

#include <cstdint>

namespace mlir::buddy {

/// In decode, the calling thread attends to a cache of up to as many positions before other threads could have begun.
inline int64_t serialPositions(int64_t heads, int64_t headDim) {
  constexpr int64_t serialElements = 32 * 1024; // of K, counted for every query head
  return serialElements / (heads * headDim);
}

} // namespace mlir::buddy

#endif // BUDDY_DECODEATTENTION_H
