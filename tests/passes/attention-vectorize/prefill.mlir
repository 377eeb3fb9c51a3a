// RUN: buddy-opt %s --attention-vectorize --canonicalize --cse | FileCheck %s

// Many queries: K is transposed in registers once for a block of queries; no buffer grows with the sequence.

// CHECK-LABEL: func private @attention
// CHECK: scf.parallel
// CHECK: memref.alloca() {{.*}} memref<12x16xf32>
// CHECK-NOT: memref.alloca(%
// CHECK-NOT: memref.alloc(
// CHECK: vector.shuffle
// CHECK: vector.load {{.*}} memref<12x16xf32>, vector<4xf32>
// CHECK: vector.fma
// CHECK: arith.shli {{.*}} vector<4xi32>
module attributes {buddy.target = {vector_bits = 128 : i64}} {
  func.func private @attention(%q: memref<1x4x?x12xf32>, %k: memref<2x4x?x12xf32>, %v: memref<2x4x?x12xf32>,
      %layer: index, %position: index, %out: memref<1x?x4x12xf32>) attributes {buddy.attention = {scale = 0.25 : f32}} {
    return
  }
}
