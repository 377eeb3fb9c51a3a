// RUN: buddy-opt %s --matmul-vectorize --canonicalize | FileCheck %s

// One row: in parallel over panels, four sets of accumulators, the panel read as one stream, and no separate fill.

// CHECK-LABEL: func @gemv
// CHECK-SAME: %[[A:[a-z0-9]*]]: memref<1x576xf32>, %[[W:[a-z0-9]*]]: memref<36x576x16xf32>
// CHECK-NOT: linalg.fill
// CHECK: scf.parallel (%[[P:.*]]) = (%{{.*}}) to (%{{.*}})
// CHECK: scf.for %[[K:.*]] = %{{.*}} to %{{.*}} step %{{.*}} iter_args(
// CHECK: memref.prefetch %[[W]][%[[P]], %{{.*}}, %c0], read, locality<2>, data
// CHECK-COUNT-6: vector.load %[[W]][%[[P]], %{{.*}}, %{{.*}}] : memref<36x576x16xf32>, vector<8xf32>
// CHECK-NOT: vector.load
// CHECK: scf.yield
// CHECK-COUNT-6: arith.addf
// CHECK-COUNT-2: vector.store
// CHECK-NOT: linalg.generic
#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>
module attributes {buddy.target = {vector_bits = 256 : i64, panel = 16 : i64, tile_rows = 6 : i64}} {
  func.func @gemv(%a: memref<1x576xf32>, %w: memref<36x576x16xf32>) -> f32 {
    %zero = arith.constant 0.0 : f32
    %c0 = arith.constant 0 : index
    %c = memref.alloc() : memref<1x36x16xf32>
    linalg.fill ins(%zero : f32) outs(%c : memref<1x36x16xf32>)
    linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
        ins(%a, %w : memref<1x576xf32>, memref<36x576x16xf32>) outs(%c : memref<1x36x16xf32>) {
      ^bb0(%x: f32, %y: f32, %o: f32):
        %m = arith.mulf %x, %y : f32
        %r = arith.addf %o, %m : f32
        linalg.yield %r : f32
    }
    %r = memref.load %c[%c0, %c0, %c0] : memref<1x36x16xf32>
    return %r : f32
  }
}
