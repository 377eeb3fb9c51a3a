// RUN: buddy-opt %s --attention-vectorize --canonicalize --cse | FileCheck %s

// One query: parallel over KV heads; the three query heads of a group share the loads of K and V.

// CHECK-LABEL: func private @attention
// CHECK-SAME: %[[Q:[a-z0-9]*]]: memref<1x9x1x64xf32>, %[[K:[a-z0-9]*]]: memref<30x3x?x64xf32>,
// CHECK-SAME: %[[V:[a-z0-9]*]]: memref<30x3x?x64xf32>
// CHECK-NOT: buddy.attention
// CHECK-NOT: linalg
// CHECK: scf.parallel (%{{.*}}) = (%{{.*}}) to (%c3)
// CHECK-COUNT-4: memref.alloca
// CHECK-NOT: memref.alloc
// CHECK-COUNT-8: vector.load %[[K]]
// CHECK-NOT: vector.load %[[K]]
// CHECK: math.exp {{.*}} vector<8xf32>
// CHECK: vector.load %[[V]]
// CHECK: arith.divf
module attributes {buddy.target = {vector_bits = 256 : i64}} {
  func.func private @attention(%q: memref<1x9x1x64xf32>, %k: memref<30x3x?x64xf32>, %v: memref<30x3x?x64xf32>,
      %layer: index, %position: index, %out: memref<1x1x9x64xf32>) attributes {buddy.attention = {scale = 0.125 : f32}} {
    %zero = arith.constant 0.0 : f32
    linalg.fill ins(%zero : f32) outs(%out : memref<1x1x9x64xf32>)
    return
  }
}
