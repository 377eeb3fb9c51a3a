// RUN: buddy-opt %s --matmul-vectorize --canonicalize --split-input-file | FileCheck %s

#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>

// Any number of rows: tiles of 12 x 32 on 512-bit vectors, the rest in 8, 4, 2 and 1 rows. C is added to, so that no row
// may be computed twice. Several tiles share the fetching of the next panel.

// CHECK-LABEL: func @wide
// CHECK: scf.parallel (%[[BLOCK:.*]], %[[PANEL:.*]]) =
// CHECK: arith.divui %{{.*}}, %c12
// CHECK-NOT: arith.minui
// CHECK: scf.for %{{.*}} = %c0 to %{{.*}} step %c1
// CHECK: scf.for %[[K:.*]] = %c0 to %c576 step %c2
// CHECK-COUNT-2: vector.load {{.*}} vector<16xf32>
// CHECK: %[[SHARE:.*]] = arith.shrui %[[K]], %{{.*}}
// CHECK: %[[ROW:.*]] = arith.addi %{{.*}}, %[[SHARE]]
// CHECK: memref.prefetch %{{.*}}[%[[PANEL]], %[[ROW]], %c0], read, locality<2>
// CHECK: memref.prefetch %{{.*}}[%[[PANEL]], %[[ROW]], %c16], read, locality<2>
// CHECK-COUNT-24: vector.fma
// CHECK: arith.addf {{.*}} vector<16xf32>
// CHECK-COUNT-4: scf.for %{{.*}} = %c0 to %{{.*}} step %c1 {
// CHECK-NOT: step %c1 {
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
// CHECK: scf.parallel
// CHECK-COUNT-2: vector.load {{.*}} vector<4xf32>
// CHECK-COUNT-12: vector.fma {{.*}} vector<4xf32>
// CHECK: memref.load %{{.*}}[%c5, %{{.*}}]
// CHECK: memref.load %{{.*}}[%c6, %{{.*}}]
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

// -----

// Panels of halves are widened as they are loaded; the rows that are left over are computed in a tile that begins
// earlier where C need not be added to.

#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>

// CHECK-LABEL: func @halves
// CHECK: scf.parallel
// CHECK: arith.minui
// CHECK: vector.load {{.*}} vector<8xbf16>
// CHECK: arith.extf {{.*}} : vector<8xbf16> to vector<8xf32>
// CHECK: vector.fma {{.*}} vector<8xf32>
// CHECK-NOT: linalg
func.func @halves(%a: memref<?x64xf32>, %w: memref<3x64x16xbf16>, %c: memref<?x3x16xf32>) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%c : memref<?x3x16xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%a, %w : memref<?x64xf32>, memref<3x64x16xbf16>) outs(%c : memref<?x3x16xf32>) {
    ^bb0(%x: f32, %y: bf16, %o: f32):
      %wide = arith.extf %y : bf16 to f32
      %m = arith.mulf %x, %wide : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  return
}
