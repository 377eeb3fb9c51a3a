// RUN: buddy-opt %s --generic-vectorize --canonicalize | FileCheck %s
// RUN: buddy-opt %s --generic-vectorize=vectorize=false --canonicalize | FileCheck %s --check-prefix=OFF

// OFF-NOT: vector

// A gather has no vector form.

// CHECK-LABEL: func @gather
// CHECK-NOT: vector
// CHECK: memref.load
// CHECK: memref.store
func.func @gather(%ids: memref<3xi64>, %table: memref<9x8x16xf32>, %y: memref<3x8xf32>) {
  linalg.generic {
      indexing_maps = [affine_map<(s, k) -> (s)>, affine_map<(s, k) -> (s, k)>],
      iterator_types = ["parallel", "parallel"]} ins(%ids : memref<3xi64>) outs(%y : memref<3x8xf32>) {
    ^bb0(%id: i64, %o: f32):
      %n = arith.index_cast %id : i64 to index
      %k = linalg.index 1 : index
      %r = memref.load %table[%n, %k, %n] : memref<9x8x16xf32>
      linalg.yield %r : f32
  }
  return
}

// The sine of a position needs libm: a polynomial is not right for large arguments.

// CHECK-LABEL: func @sine
// CHECK-NOT: vector
// CHECK: math.sin %{{.*}} : f32
func.func @sine(%x: memref<64xf32>, %y: memref<64xf32>) {
  linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}
      ins(%x : memref<64xf32>) outs(%y : memref<64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %r = math.sin %a : f32
      linalg.yield %r : f32
  }
  return
}

// But a vector loop has lanes for an index.

// CHECK-LABEL: func @iota
// CHECK: vector.step
func.func @iota(%y: memref<64xindex>) {
  linalg.generic {indexing_maps = [affine_map<(d) -> (d)>], iterator_types = ["parallel"]} outs(%y : memref<64xindex>) {
    ^bb0(%o: index):
      %r = linalg.index 0 : index
      linalg.yield %r : index
  }
  return
}
