// RUN: buddy-opt %s --decompose-composites | FileCheck %s

// CHECK-LABEL: func @softmax
// CHECK-NOT: linalg.softmax
// CHECK: arith.maxnumf
// CHECK: math.exp
// CHECK: arith.addf
// CHECK: arith.divf
func.func @softmax(%x: tensor<4x?xf32>, %o: tensor<4x?xf32>) -> tensor<4x?xf32> {
  %r = linalg.softmax dimension(1) ins(%x : tensor<4x?xf32>) outs(%o : tensor<4x?xf32>) -> tensor<4x?xf32>
  return %r : tensor<4x?xf32>
}

// CHECK-LABEL: func @concat
// CHECK-SAME: (%[[X:.*]]: tensor<?x3xf32>, %[[Y:.*]]: tensor<?x5xf32>)
// CHECK-NOT: tensor.concat
// CHECK: tensor.insert_slice %[[X]]
// CHECK: tensor.insert_slice %[[Y]]
func.func @concat(%x: tensor<?x3xf32>, %y: tensor<?x5xf32>) -> tensor<?x8xf32> {
  %r = tensor.concat dim(1) %x, %y : (tensor<?x3xf32>, tensor<?x5xf32>) -> tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}

// CHECK-LABEL: func @unpack
// CHECK-NOT: linalg.unpack
// CHECK: linalg.transpose
func.func @unpack(%packed: tensor<3x24x16xf32>) -> tensor<40x24xf32> {
  %e = tensor.empty() : tensor<40x24xf32>
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [16] into %e : tensor<3x24x16xf32> -> tensor<40x24xf32>
  return %w : tensor<40x24xf32>
}
