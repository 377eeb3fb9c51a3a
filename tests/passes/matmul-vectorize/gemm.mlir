// RUN: buddy-opt %s --matmul-vectorize --canonicalize --split-input-file | FileCheck %s

#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>

// Any number of rows: tiles of 12 x 32 on 512-bit vectors, the rest in 8, 4, 2 and 1 rows. C is added to.

// CHECK-LABEL: func @wide
// CHECK: scf.parallel (%{{.*}}, %{{.*}}) =
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-4: vector.load {{.*}} vector<16xf32>
// CHECK: arith.addf {{.*}} vector<16xf32>
// CHECK: arith.andi %{{.*}}, %c8
// CHECK: scf.if
// CHECK: arith.andi %{{.*}}, %c4
// CHECK: arith.andi %{{.*}}, %c2
// CHECK: arith.andi %{{.*}}, %c1
// CHECK: scf.if
// CHECK-NOT: scf.if
// CHECK-NOT: linalg.generic
module attributes {buddy.target = {vector_bits = 512 : i64, panel = 32 : i64, tile_rows = 12 : i64}} {
  func.func @wide(%a: memref<?x576xf32>, %w: memref<18x576x32xf32>, %c: memref<?x18x32xf32>) {
    linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
        ins(%a, %w : memref<?x576xf32>, memref<18x576x32xf32>) outs(%c : memref<?x18x32xf32>) {
      ^bb0(%x: f32, %y: f32, %o: f32):
        %m = arith.mulf %x, %y : f32
        %r = arith.addf %o, %m : f32
        linalg.yield %r : f32
    }
    return
  }
}

// -----

#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>

// Static rows: one tile of six and one of one row; K that is odd has a tail of single steps.

// CHECK-LABEL: func @static_rows
// CHECK-NOT: scf.if
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK: scf.for %{{.*}} = %{{.*}} to %{{.*}} step %c1
// CHECK-NOT: scf.if
module attributes {buddy.target = {vector_bits = 128 : i64, panel = 8 : i64, tile_rows = 6 : i64}} {
  func.func @static_rows(%a: memref<7x39xf32>, %w: memref<3x39x8xf32>, %c: memref<7x3x8xf32>) {
    linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
        ins(%a, %w : memref<7x39xf32>, memref<3x39x8xf32>) outs(%c : memref<7x3x8xf32>) {
      ^bb0(%x: f32, %y: f32, %o: f32):
        %m = arith.mulf %x, %y : f32
        %r = arith.addf %o, %m : f32
        linalg.yield %r : f32
    }
    return
  }
}

// -----

// The fill is not of this contraction's zero: something reads C in between.

#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>

// CHECK-LABEL: func @fill_is_read
// CHECK: linalg.fill
// CHECK: linalg.copy
// CHECK: scf.parallel
func.func @fill_is_read(%a: memref<1x8xf32>, %w: memref<3x8x16xf32>, %other: memref<1x3x16xf32>) -> f32 {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c = memref.alloc() : memref<1x3x16xf32>
  linalg.fill ins(%zero : f32) outs(%c : memref<1x3x16xf32>)
  linalg.copy ins(%other : memref<1x3x16xf32>) outs(%c : memref<1x3x16xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%a, %w : memref<1x8xf32>, memref<3x8x16xf32>) outs(%c : memref<1x3x16xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %m = arith.mulf %x, %y : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  %r = memref.load %c[%c0, %c0, %c0] : memref<1x3x16xf32>
  return %r : f32
}
