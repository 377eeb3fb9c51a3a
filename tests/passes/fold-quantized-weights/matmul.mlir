// RUN: buddy-opt %s --fold-packed-weights --fold-quantized-weights --canonicalize --split-input-file | FileCheck %s

// Both factors are dequantised: the body of one op computes both, over group, quad and place in it.

// CHECK-DAG: #[[A:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d3, d4, d5)>
// CHECK-DAG: #[[AS:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d3)>
// CHECK-DAG: #[[Q:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d1, d3, d4, d2, d5)>
// CHECK-DAG: #[[S:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d1, d3, d2)>
// CHECK-DAG: #[[C:.*]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2)>
// CHECK-LABEL: func @both
// CHECK-SAME: (%[[AQ:.*]]: tensor<?x2x16x4xi8>, %[[ASCALE:.*]]: tensor<?x2xf32>, %[[WQ:.*]]: tensor<3x2x16x16x4xi8>,
// CHECK-SAME:  %[[SCALE:.*]]: tensor<3x2x16xf16>
// CHECK-NOT: tensor<?x2x16x4xf32>
// CHECK: linalg.generic {indexing_maps = [#[[A]], #[[AS]], #[[Q]], #[[S]], #[[C]]]
// CHECK-SAME: "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"
// CHECK-SAME: ins(%[[AQ]], %[[ASCALE]], %[[WQ]], %[[SCALE]]
// CHECK: ^bb0(%[[A1:.*]]: i8, %[[A2:.*]]: f32, %[[W1:.*]]: i8, %[[W2:.*]]: f16, %[[O:.*]]: f32):
// CHECK: %[[AF:.*]] = arith.sitofp %[[A1]]
// CHECK: %[[AV:.*]] = arith.mulf %[[AF]], %[[A2]]
// CHECK: %[[WF:.*]] = arith.sitofp %[[W1]]
// CHECK: %[[SF:.*]] = arith.extf %[[W2]]
// CHECK: %[[WV:.*]] = arith.mulf %[[WF]], %[[SF]]
// CHECK: %[[P:.*]] = arith.mulf %[[AV]], %[[WV]]
// CHECK: arith.addf %[[O]], %[[P]]
// CHECK-NOT: tensor<3x2x16x4x16xf32>
#a = affine_map<(m, g, q, r) -> (m, g, q, r)>
#as = affine_map<(m, g, q, r) -> (m, g)>
#q = affine_map<(p, g, q, r, j) -> (p, g, q, j, r)>
#s = affine_map<(p, g, q, r, j) -> (p, g, j)>
#w = affine_map<(p, g, q, r, j) -> (p, g, q, r, j)>
func.func @both(%aq: tensor<?x2x16x4xi8>, %as: tensor<?x2xf32>, %wq: tensor<3x2x16x16x4xi8>,
    %ws: tensor<3x2x16xf16>, %out: tensor<?x40xf32>) -> tensor<?x40xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %aq, %c0 : tensor<?x2x16x4xi8>
  %ae = tensor.empty(%m) : tensor<?x2x16x4xf32>
  %a = linalg.generic {indexing_maps = [#a, #as, #a], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%aq, %as : tensor<?x2x16x4xi8>, tensor<?x2xf32>) outs(%ae : tensor<?x2x16x4xf32>) {
    ^bb0(%v: i8, %s: f32, %o: f32):
      %f = arith.sitofp %v : i8 to f32
      %r = arith.mulf %f, %s : f32
      linalg.yield %r : f32
  } -> tensor<?x2x16x4xf32>
  %x = tensor.collapse_shape %a [[0], [1, 2, 3]] : tensor<?x2x16x4xf32> into tensor<?x128xf32>
  %we = tensor.empty() : tensor<3x2x16x4x16xf32>
  %wd = linalg.generic {indexing_maps = [#q, #s, #w],
                        iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%wq, %ws : tensor<3x2x16x16x4xi8>, tensor<3x2x16xf16>) outs(%we : tensor<3x2x16x4x16xf32>) {
    ^bb0(%v: i8, %h: f16, %o: f32):
      %f = arith.sitofp %v : i8 to f32
      %s = arith.extf %h : f16 to f32
      %r = arith.mulf %f, %s : f32
      linalg.yield %r : f32
  } -> tensor<3x2x16x4x16xf32>
  %p = tensor.collapse_shape %wd [[0], [1, 2, 3], [4]] : tensor<3x2x16x4x16xf32> into tensor<3x128x16xf32>
  %e = tensor.empty() : tensor<40x128xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x128x16xf32> -> tensor<40x128xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<?x128xf32>, tensor<40x128xf32>)
      outs(%out : tensor<?x40xf32>) -> tensor<?x40xf32>
  return %y : tensor<?x40xf32>
}

// -----

// Nibbles, with activations that are plain: these are cut as the weight's rows are. The half of a byte is a loop.

// CHECK-LABEL: func @nibbles
// CHECK-SAME: (%[[X:.*]]: tensor<5x64xf32>
// CHECK: %[[A:.*]] = tensor.expand_shape %[[X]] {{\[\[}}0], [1, 2, 3, 4]] {{.*}} into tensor<5x2x2x4x4xf32>
// CHECK: linalg.generic
// CHECK-SAME: "parallel", "parallel", "parallel", "reduction", "reduction", "reduction", "reduction"
// CHECK-SAME: ins(%[[A]], %{{.*}} : tensor<5x2x2x4x4xf32>, tensor<3x2x4x16x4xi8>, tensor<3x2x16xf16>, tensor<3x2x16xf16>)
// CHECK: linalg.index 4
// CHECK: arith.shrui
// CHECK-NOT: tensor<3x2x2x4x4x16xf32>
func.func @nibbles(%x: tensor<5x64xf32>, %wq: tensor<3x2x4x16x4xi8>, %ws: tensor<3x2x16xf16>,
    %wm: tensor<3x2x16xf16>, %out: tensor<5x48xf32>) -> tensor<5x48xf32> {
  %c4 = arith.constant 4 : i8
  %c15 = arith.constant 15 : i8
  %we = tensor.empty() : tensor<3x2x2x4x4x16xf32>
  %wd = linalg.generic {indexing_maps = [affine_map<(p, g, h, q, r, j) -> (p, g, q, j, r)>,
                                         affine_map<(p, g, h, q, r, j) -> (p, g, j)>,
                                         affine_map<(p, g, h, q, r, j) -> (p, g, j)>,
                                         affine_map<(p, g, h, q, r, j) -> (p, g, h, q, r, j)>],
                        iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%wq, %ws, %wm : tensor<3x2x4x16x4xi8>, tensor<3x2x16xf16>, tensor<3x2x16xf16>)
      outs(%we : tensor<3x2x2x4x4x16xf32>) {
    ^bb0(%v: i8, %s: f16, %m: f16, %o: f32):
      %h = linalg.index 2 : index
      %h8 = arith.index_cast %h : index to i8
      %bits = arith.muli %h8, %c4 : i8
      %moved = arith.shrui %v, %bits : i8
      %nibble = arith.andi %moved, %c15 : i8
      %f = arith.uitofp %nibble : i8 to f32
      %sf = arith.extf %s : f16 to f32
      %mf = arith.extf %m : f16 to f32
      %scaled = arith.mulf %f, %sf : f32
      %r = arith.addf %scaled, %mf : f32
      linalg.yield %r : f32
  } -> tensor<3x2x2x4x4x16xf32>
  %p = tensor.collapse_shape %wd [[0], [1, 2, 3, 4], [5]] : tensor<3x2x2x4x4x16xf32> into tensor<3x64x16xf32>
  %e = tensor.empty() : tensor<48x64xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x64x16xf32> -> tensor<48x64xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<5x64xf32>, tensor<48x64xf32>)
      outs(%out : tensor<5x48xf32>) -> tensor<5x48xf32>
  return %y : tensor<5x48xf32>
}

// -----

// Panels of f16 have nothing to collapse: the widening moves into the contraction.

// CHECK-LABEL: func @halves
// CHECK-SAME: (%[[X:.*]]: tensor<5x64xf32>, %[[W:.*]]: tensor<3x64x16xf16>
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[X]], %[[W]] : tensor<5x64xf32>, tensor<3x64x16xf16>)
// CHECK: arith.extf
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.addf
#panels = affine_map<(p, k, j) -> (p, k, j)>
func.func @halves(%x: tensor<5x64xf32>, %h: tensor<3x64x16xf16>, %out: tensor<5x48xf32>) -> tensor<5x48xf32> {
  %we = tensor.empty() : tensor<3x64x16xf32>
  %p = linalg.generic {indexing_maps = [#panels, #panels], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%h : tensor<3x64x16xf16>) outs(%we : tensor<3x64x16xf32>) {
    ^bb0(%v: f16, %o: f32):
      %f = arith.extf %v : f16 to f32
      linalg.yield %f : f32
  } -> tensor<3x64x16xf32>
  %e = tensor.empty() : tensor<48x64xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x64x16xf32> -> tensor<48x64xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<5x64xf32>, tensor<48x64xf32>)
      outs(%out : tensor<5x48xf32>) -> tensor<5x48xf32>
  return %y : tensor<5x48xf32>
}

// -----

// A factor that is computed from what is as wide as itself is no stored weight: it is left alone.

// CHECK-LABEL: func @wide
// CHECK: linalg.generic
// CHECK: arith.mulf
// CHECK: linalg.generic
#panels = affine_map<(p, k, j) -> (p, k, j)>
func.func @wide(%x: tensor<5x64xf32>, %h: tensor<3x64x16xf32>, %out: tensor<5x48xf32>) -> tensor<5x48xf32> {
  %we = tensor.empty() : tensor<3x64x16xf32>
  %p = linalg.generic {indexing_maps = [#panels, #panels], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%h : tensor<3x64x16xf32>) outs(%we : tensor<3x64x16xf32>) {
    ^bb0(%v: f32, %o: f32):
      %f = arith.mulf %v, %v : f32
      linalg.yield %f : f32
  } -> tensor<3x64x16xf32>
  %e = tensor.empty() : tensor<48x64xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x64x16xf32> -> tensor<48x64xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<5x64xf32>, tensor<48x64xf32>)
      outs(%out : tensor<5x48xf32>) -> tensor<5x48xf32>
  return %y : tensor<5x48xf32>
}
