// RUN: buddy-opt %s --fold-packed-weights --canonicalize --split-input-file | FileCheck %s

// W stands as N x K: a matmul with a transposed second operand. N is a multiple of the panel.

// CHECK: #[[A:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3)>
// CHECK: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d3, d2)>
// CHECK: #[[C:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
// CHECK-LABEL: func @whole_panels
// CHECK-SAME: (%[[X:.*]]: tensor<?x24xf32>, %[[PACKED:.*]]: tensor<3x24x16xf32>
// CHECK-NOT: linalg.unpack
// CHECK: %[[P:.*]] = linalg.generic {indexing_maps = [#[[A]], #[[W]], #[[C]]]
// CHECK-SAME: "parallel", "parallel", "parallel", "reduction"
// CHECK-SAME: ins(%[[X]], %[[PACKED]]
// CHECK: tensor.collapse_shape %{{.*}} {{\[\[}}0], [1, 2]] : tensor<?x3x16xf32> into tensor<?x48xf32>
// CHECK-NOT: tensor.extract_slice
// CHECK: return
#a = affine_map<(m, n, k) -> (m, k)>
#bt = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @whole_panels(%x: tensor<?x24xf32>, %packed: tensor<3x24x16xf32>, %m: index) -> tensor<?x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<48x24xf32>
  %o = tensor.empty(%m) : tensor<?x48xf32>
  %z = linalg.fill ins(%zero : f32) outs(%o : tensor<?x48xf32>) -> tensor<?x48xf32>
  %y = linalg.matmul indexing_maps = [#a, #bt, #c] ins(%x, %w : tensor<?x24xf32>, tensor<48x24xf32>)
      outs(%z : tensor<?x48xf32>) -> tensor<?x48xf32>
  return %y : tensor<?x48xf32>
}

// -----

// W stands as K x N, N is not a multiple of the panel, and C held something before.

// CHECK-LABEL: func @partial_panel
// CHECK-SAME: %[[BEFORE:[a-z0-9]*]]: tensor<5x40xf32>
// CHECK-NOT: linalg.unpack
// CHECK: linalg.generic
// CHECK: %[[FLAT:.*]] = tensor.collapse_shape %{{.*}} : tensor<5x3x16xf32> into tensor<5x48xf32>
// CHECK: %[[CUT:.*]] = tensor.extract_slice %[[FLAT]][0, 0] [5, 40] [1, 1]
// CHECK: linalg.generic {{.*}} ins(%[[CUT]] : tensor<5x40xf32>) outs(%[[BEFORE]] : tensor<5x40xf32>)
// CHECK: arith.addf
func.func @partial_panel(%x: tensor<5x24xf32>, %packed: tensor<3x24x16xf32>, %before: tensor<5x40xf32>)
    -> tensor<5x40xf32> {
  %e = tensor.empty() : tensor<24x40xf32>
  %w = linalg.unpack %packed outer_dims_perm = [1, 0] inner_dims_pos = [1] inner_tiles = [16] into %e
      : tensor<3x24x16xf32> -> tensor<24x40xf32>
  %y = linalg.matmul ins(%x, %w : tensor<5x24xf32>, tensor<24x40xf32>) outs(%before : tensor<5x40xf32>)
      -> tensor<5x40xf32>
  return %y : tensor<5x40xf32>
}

// -----

// From tosa.matmul: a batch of one, with reshapes and a transposition in between.

// CHECK-LABEL: func @unit_batch
// CHECK-NOT: linalg.unpack
// CHECK-NOT: linalg.batch_matmul
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<?x24xf32>, tensor<3x24x16xf32>)
// CHECK-NOT: linalg.batch_matmul
func.func @unit_batch(%x: tensor<1x?x24xf32>, %packed: tensor<3x24x16xf32>, %m: index) -> tensor<1x?x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<48x24xf32>
  %te = tensor.empty() : tensor<24x48xf32>
  %t = linalg.transpose ins(%w : tensor<48x24xf32>) outs(%te : tensor<24x48xf32>) permutation = [1, 0]
  %b = tensor.expand_shape %t [[0, 1], [2]] output_shape [1, 24, 48] : tensor<24x48xf32> into tensor<1x24x48xf32>
  %o = tensor.empty(%m) : tensor<1x?x48xf32>
  %z = linalg.fill ins(%zero : f32) outs(%o : tensor<1x?x48xf32>) -> tensor<1x?x48xf32>
  %y = linalg.batch_matmul ins(%x, %b : tensor<1x?x24xf32>, tensor<1x24x48xf32>) outs(%z : tensor<1x?x48xf32>)
      -> tensor<1x?x48xf32>
  return %y : tensor<1x?x48xf32>
}

// -----

// The weight is reduced over N: that is another product, which the panels do not serve.

// CHECK-LABEL: func @other_product
// CHECK: linalg.unpack
// CHECK: linalg.matmul
func.func @other_product(%x: tensor<5x48xf32>, %packed: tensor<3x24x16xf32>, %o: tensor<5x24xf32>) -> tensor<5x24xf32> {
  %e = tensor.empty() : tensor<48x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<48x24xf32>
  %y = linalg.matmul ins(%x, %w : tensor<5x48xf32>, tensor<48x24xf32>) outs(%o : tensor<5x24xf32>) -> tensor<5x24xf32>
  return %y : tensor<5x24xf32>
}
