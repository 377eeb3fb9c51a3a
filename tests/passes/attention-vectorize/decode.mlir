// RUN: buddy-opt %s --attention-vectorize --canonicalize --cse | FileCheck %s

// One query: over KV heads and ranges of positions, in parallel unless the cache is short; the three query heads of a
// group are the rows. What the ranges leave is joined in the end.

// CHECK-LABEL: func private @attention
// CHECK-SAME: %[[Q:[a-z0-9]*]]: memref<1x9x1x64xf32>, %[[K:[a-z0-9]*]]: memref<30x3x?x64xf32>,
// CHECK-SAME: %[[V:[a-z0-9]*]]: memref<30x3x?x64xf32>
// CHECK-SAME: %[[OUT:[a-z0-9]*]]: memref<1x1x9x64xf32>
// CHECK-NOT: buddy.attention
// CHECK-NOT: linalg
// CHECK: %[[PARTS:.*]] = memref.alloc() {{.*}} : memref<198x72xf32>
// CHECK: %[[UNITS:.*]] = arith.muli %{{.*}}, %c3
// CHECK: scf.if
// CHECK-COUNT-6: memref.alloca
// CHECK: scf.for %{{.*}} = %c0 to %[[UNITS]]
// CHECK: } else {
// CHECK: scf.parallel (%{{.*}}) = (%{{.*}}) to (%[[UNITS]])
// CHECK-COUNT-6: memref.alloca
// CHECK-NOT: memref.alloc
// CHECK: memref.prefetch %[[K]]
// CHECK: memref.prefetch %[[V]]
// CHECK: memref.prefetch %[[K]]
// CHECK: vector.load %[[K]]
// CHECK: vector.shuffle
// CHECK: arith.shli {{.*}} vector<8xi32>
// CHECK: memref.prefetch %[[V]]
// CHECK: vector.load %[[V]]
// CHECK: vector.store %{{.*}}, %[[PARTS]]
// CHECK: scf.reduce
// CHECK: scf.for
// CHECK: vector.load %[[PARTS]]
// CHECK: arith.divf
// CHECK: vector.store %{{.*}}, %[[OUT]]
module attributes {buddy.target = {vector_bits = 256 : i64}} {
  func.func private @attention(%q: memref<1x9x1x64xf32>, %k: memref<30x3x?x64xf32>, %v: memref<30x3x?x64xf32>,
      %layer: index, %position: index, %out: memref<1x1x9x64xf32>) attributes {buddy.attention = {scale = 0.125 : f32}} {
    %zero = arith.constant 0.0 : f32
    linalg.fill ins(%zero : f32) outs(%out : memref<1x1x9x64xf32>)
    return
  }
}
