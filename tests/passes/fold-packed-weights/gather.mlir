// RUN: buddy-opt %s --fold-packed-weights --canonicalize | FileCheck %s

// The row gather of an embedding that shares its weight with the head.

// CHECK-LABEL: func @embedding
// CHECK-SAME: %[[PACKED:[a-z0-9]*]]: tensor<3x24x16xf32>
// CHECK-NOT: linalg.unpack
// CHECK-DAG: %[[P:.*]] = arith.divui %[[ROW:.*]], %{{.*}} : index
// CHECK-DAG: %[[J:.*]] = arith.remui %[[ROW]], %{{.*}} : index
// CHECK: tensor.extract %[[PACKED]][%[[P]], %{{.*}}, %[[J]]]
func.func @embedding(%ids: tensor<1x?xi64>, %packed: tensor<3x24x16xf32>, %out: tensor<1x?x24xf32>)
    -> tensor<1x?x24xf32> {
  %e = tensor.empty() : tensor<40x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<40x24xf32>
  %batch = tensor.expand_shape %w [[0, 1], [2]] output_shape [1, 40, 24] : tensor<40x24xf32> into tensor<1x40x24xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(b, s, k) -> (b, s)>, affine_map<(b, s, k) -> (b, s, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%ids : tensor<1x?xi64>) outs(%out : tensor<1x?x24xf32>) {
    ^bb0(%id: i64, %o: f32):
      %b = linalg.index 0 : index
      %k = linalg.index 2 : index
      %n = arith.index_cast %id : i64 to index
      %value = tensor.extract %batch[%b, %n, %k] : tensor<1x40x24xf32>
      linalg.yield %value : f32
  } -> tensor<1x?x24xf32>
  return %r : tensor<1x?x24xf32>
}
