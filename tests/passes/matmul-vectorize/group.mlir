// RUN: buddy-opt %s --matmul-vectorize --canonicalize | FileCheck %s
// RUN: buddy-opt %s --matmul-vectorize=group=false | FileCheck %s --check-prefix=APART

// Two contractions with the same input: one loop over the 3 + 2 panels.

// CHECK-LABEL: func.func @same_input
// CHECK-SAME: %{{[a-z0-9]*}}: memref<1x24xf32>, %[[W0:[a-z0-9]*]]: memref<3x24x16xf32>, %[[W1:[a-z0-9]*]]: memref<2x24x16xf32>
// CHECK: scf.parallel (%[[P:.*]]) = (%c0) to (%c5)
// CHECK: %[[FIRST:.*]] = arith.cmpi ult, %[[P]], %c3
// CHECK: scf.if %[[FIRST]]
// CHECK: vector.load %[[W0]][%[[P]]
// CHECK: } else {
// CHECK: %[[Q:.*]] = arith.subi %[[P]], %c3
// CHECK: vector.load %[[W1]][%[[Q]]
// CHECK: scf.reduce
// CHECK-NOT: scf.parallel
// CHECK: return

// APART-LABEL: func.func @same_input
// APART-COUNT-2: scf.parallel
// APART-NOT: scf.parallel
// APART: return
#a = affine_map<(m, p, j, k) -> (m, k)>
#w = affine_map<(m, p, j, k) -> (p, k, j)>
#c = affine_map<(m, p, j, k) -> (m, p, j)>
module attributes {buddy.target = {vector_bits = 256 : i64, panel = 16 : i64, tile_rows = 6 : i64}} {
func.func private @use(memref<1x3x16xf32>, memref<1x2x16xf32>)
func.func @same_input(%x: memref<1x24xf32>, %w0: memref<3x24x16xf32>, %w1: memref<2x24x16xf32>) {
  %zero = arith.constant 0.0 : f32
  %c0 = memref.alloc() : memref<1x3x16xf32>
  linalg.fill ins(%zero : f32) outs(%c0 : memref<1x3x16xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w0 : memref<1x24xf32>, memref<3x24x16xf32>) outs(%c0 : memref<1x3x16xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  %c1 = memref.alloc() : memref<1x2x16xf32>
  linalg.fill ins(%zero : f32) outs(%c1 : memref<1x2x16xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w1 : memref<1x24xf32>, memref<2x24x16xf32>) outs(%c1 : memref<1x2x16xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  call @use(%c0, %c1) : (memref<1x3x16xf32>, memref<1x2x16xf32>) -> ()
  return
}

// The input is written in between, so that both stay apart.
// CHECK-LABEL: func.func @input_changes
// CHECK: scf.parallel
// CHECK: linalg.fill
// CHECK: scf.parallel
// CHECK: return
func.func @input_changes(%x: memref<1x24xf32>, %w0: memref<3x24x16xf32>, %w1: memref<2x24x16xf32>) {
  %zero = arith.constant 0.0 : f32
  %c0 = memref.alloc() : memref<1x3x16xf32>
  %c1 = memref.alloc() : memref<1x2x16xf32>
  linalg.fill ins(%zero : f32) outs(%c0 : memref<1x3x16xf32>)
  linalg.fill ins(%zero : f32) outs(%c1 : memref<1x2x16xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w0 : memref<1x24xf32>, memref<3x24x16xf32>) outs(%c0 : memref<1x3x16xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  linalg.fill ins(%zero : f32) outs(%x : memref<1x24xf32>)
  linalg.generic {indexing_maps = [#a, #w, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w1 : memref<1x24xf32>, memref<2x24x16xf32>) outs(%c1 : memref<1x2x16xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }
  call @use(%c0, %c1) : (memref<1x3x16xf32>, memref<1x2x16xf32>) -> ()
  return
}
}
