// RUN: buddy-opt %s --generic-vectorize --canonicalize | FileCheck %s

module attributes {buddy.target = {vector_bits = 512 : i64}} {

// Four accumulators, then one, then a horizontal sum, then scalars; always in the same order.

// CHECK-LABEL: func @row_sums
// CHECK: scf.for {{.*}} -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// CHECK-COUNT-4: vector.load
// CHECK: scf.yield
// CHECK: scf.for {{.*}} -> (vector<16xf32>)
// CHECK: vector.reduction <add>
// CHECK: scf.for {{.*}} -> (f32)
// CHECK: memref.store
func.func @row_sums(%x: memref<4x?xf32>, %y: memref<4xf32>) {
  linalg.reduce { arith.addf } ins(%x : memref<4x?xf32>) outs(%y : memref<4xf32>) dimensions = [1]
  return
}

// CHECK-LABEL: func @row_maxima
// CHECK: vector.reduction <maxnumf>
func.func @row_maxima(%x: memref<4x64xf32>, %y: memref<4xf32>) {
  linalg.reduce { arith.maxnumf } ins(%x : memref<4x64xf32>) outs(%y : memref<4xf32>) dimensions = [1]
  return
}

// Columns are contiguous in the output: they are the vectors, and the reduction is the loop around them.

// CHECK-LABEL: func @column_sums
// CHECK: vector.load
// CHECK-NOT: vector.reduction
// CHECK: vector.store
func.func @column_sums(%x: memref<7x64xf32>, %y: memref<64xf32>) {
  linalg.reduce { arith.addf } ins(%x : memref<7x64xf32>) outs(%y : memref<64xf32>) dimensions = [0]
  return
}

// A product of activations: vectors along the columns of B.

// CHECK-LABEL: func @matmul
// CHECK: vector.broadcast
// CHECK: vector.store {{.*}} vector<16xf32>
func.func @matmul(%a: memref<4x8xf32>, %b: memref<8x32xf32>, %c: memref<4x32xf32>) {
  linalg.matmul ins(%a, %b : memref<4x8xf32>, memref<8x32xf32>) outs(%c : memref<4x32xf32>)
  return
}
}
