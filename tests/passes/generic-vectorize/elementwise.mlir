// RUN: buddy-opt %s --generic-vectorize --canonicalize | FileCheck %s

module attributes {buddy.target = {vector_bits = 256 : i64}} {

// Rows in parallel; what a row has once is computed once, outside of the vector loop.

// CHECK-LABEL: func @scale_rows
// CHECK: scf.parallel
// CHECK: memref.load
// CHECK: math.rsqrt %{{.*}} : f32
// CHECK: scf.for %{{.*}} = %c0 to %c64 step %c8
// CHECK: vector.load {{.*}} vector<8xf32>
// CHECK: arith.mulf {{.*}} vector<8xf32>
// CHECK: vector.store
// CHECK-NOT: memref.store
// CHECK: return
func.func @scale_rows(%x: memref<?x64xf32>, %s: memref<?xf32>, %y: memref<?x64xf32>) {
  linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>, affine_map<(m, k) -> (m, k)>],
      iterator_types = ["parallel", "parallel"]} ins(%x, %s : memref<?x64xf32>, memref<?xf32>)
      outs(%y : memref<?x64xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %r = math.rsqrt %b : f32
      %p = arith.mulf %a, %r : f32
      linalg.yield %p : f32
  }
  return
}

// A static tail takes narrower vectors: 13 = 8 + 4 + 1. Little work stays on one thread.

// CHECK-LABEL: func @static_tail
// CHECK-NOT: scf.parallel
// CHECK: vector<8xf32>
// CHECK: vector<4xf32>
// CHECK: memref.store
// CHECK: return
func.func @static_tail(%x: memref<3x13xf32>, %y: memref<3x13xf32>) {
  linalg.exp ins(%x : memref<3x13xf32>) outs(%y : memref<3x13xf32>)
  return
}

// A dynamic tail is scalar.

// CHECK-LABEL: func @dynamic_tail
// CHECK: vector.store {{.*}} vector<8xf32>
// CHECK: memref.store {{.*}} : memref<?xf32>
// CHECK: return
func.func @dynamic_tail(%x: memref<?xf32>, %y: memref<?xf32>) {
  linalg.add ins(%x, %x : memref<?xf32>, memref<?xf32>) outs(%y : memref<?xf32>)
  return
}

// Strided copies become loops, never a call into a run-time library.

// CHECK-LABEL: func @copy
// CHECK-NOT: memref.copy
// CHECK: vector.load
// CHECK: vector.store
func.func @copy(%x: memref<4x8xf32, strided<[32, 1], offset: ?>>, %y: memref<4x8xf32>) {
  memref.copy %x, %y : memref<4x8xf32, strided<[32, 1], offset: ?>> to memref<4x8xf32>
  return
}

// A transposition of the outer dimensions keeps contiguous rows.

// CHECK-LABEL: func @transpose
// CHECK: vector.load {{.*}} vector<8xf32>
// CHECK: vector.store {{.*}} vector<8xf32>
func.func @transpose(%x: memref<5x3x16xf32>, %y: memref<3x5x16xf32>) {
  linalg.transpose ins(%x : memref<5x3x16xf32>) outs(%y : memref<3x5x16xf32>) permutation = [1, 0, 2]
  return
}
}
