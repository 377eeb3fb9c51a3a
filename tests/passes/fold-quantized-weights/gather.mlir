// RUN: buddy-opt %s --fold-packed-weights --fold-quantized-weights --canonicalize --cse | FileCheck %s

// The row gather of an embedding in nibbles: element (p, k, j) is computed from the byte, the scale and the minimum that
// it depends on. k = ((g * 2 + h) * 4 + q) * 4 + r.

// CHECK-LABEL: func @embedding
// CHECK-SAME: %[[Q:[a-z0-9]*]]: tensor<3x2x4x16x4xi8>, %[[S:[a-z0-9]*]]: tensor<3x2x16xf16>
// CHECK-NOT: tensor<3x2x2x4x4x16xf32>
// CHECK: linalg.generic
// CHECK-DAG: %[[K:.*]] = linalg.index 2
// CHECK-DAG: %[[R:.*]] = arith.remui %[[K]], %c4
// CHECK-DAG: %[[K4:.*]] = arith.divui %[[K]], %c4
// CHECK-DAG: %[[QUAD:.*]] = arith.remui %[[K4]], %c4
// CHECK-DAG: %[[K16:.*]] = arith.divui %[[K4]], %c4
// CHECK-DAG: %[[H:.*]] = arith.remui %[[K16]], %c2
// CHECK-DAG: %[[G:.*]] = arith.divui %[[K16]], %c2
// CHECK-DAG: %[[BYTE:.*]] = tensor.extract %[[Q]][%{{.*}}, %[[G]], %[[QUAD]], %{{.*}}, %[[R]]]
// CHECK-DAG: tensor.extract %[[S]][%{{.*}}, %[[G]], %{{.*}}]
// CHECK-DAG: %[[H8:.*]] = arith.index_cast %[[H]] : index to i8
// CHECK: arith.shrui %[[BYTE]]
// CHECK: arith.mulf
func.func @embedding(%ids: tensor<1x?xi64>, %wq: tensor<3x2x4x16x4xi8>, %ws: tensor<3x2x16xf16>,
    %out: tensor<1x?x64xf32>) -> tensor<1x?x64xf32> {
  %c4 = arith.constant 4 : i8
  %c15 = arith.constant 15 : i8
  %we = tensor.empty() : tensor<3x2x2x4x4x16xf32>
  %wd = linalg.generic {indexing_maps = [affine_map<(p, g, h, q, r, j) -> (p, g, q, j, r)>,
                                         affine_map<(p, g, h, q, r, j) -> (p, g, j)>,
                                         affine_map<(p, g, h, q, r, j) -> (p, g, h, q, r, j)>],
                        iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%wq, %ws : tensor<3x2x4x16x4xi8>, tensor<3x2x16xf16>) outs(%we : tensor<3x2x2x4x4x16xf32>) {
    ^bb0(%v: i8, %s: f16, %o: f32):
      %h = linalg.index 2 : index
      %h8 = arith.index_cast %h : index to i8
      %bits = arith.muli %h8, %c4 : i8
      %moved = arith.shrui %v, %bits : i8
      %nibble = arith.andi %moved, %c15 : i8
      %f = arith.uitofp %nibble : i8 to f32
      %sf = arith.extf %s : f16 to f32
      %r = arith.mulf %f, %sf : f32
      linalg.yield %r : f32
  } -> tensor<3x2x2x4x4x16xf32>
  %p = tensor.collapse_shape %wd [[0], [1, 2, 3, 4], [5]] : tensor<3x2x2x4x4x16xf32> into tensor<3x64x16xf32>
  %e = tensor.empty() : tensor<40x64xf32>
  %w = linalg.unpack %p inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x64x16xf32> -> tensor<40x64xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(b, s, k) -> (b, s)>, affine_map<(b, s, k) -> (b, s, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%ids : tensor<1x?xi64>) outs(%out : tensor<1x?x64xf32>) {
    ^bb0(%id: i64, %o: f32):
      %k = linalg.index 2 : index
      %n = arith.index_cast %id : i64 to index
      %value = tensor.extract %w[%n, %k] : tensor<40x64xf32>
      linalg.yield %value : f32
  } -> tensor<1x?x64xf32>
  return %r : tensor<1x?x64xf32>
}
