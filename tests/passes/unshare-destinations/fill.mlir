// RUN: buddy-opt %s --cse --unshare-destinations | FileCheck %s

// CHECK-LABEL: func @two_sums
// CHECK-COUNT-2: linalg.fill
// CHECK-COUNT-2: linalg.reduce
// CHECK: return
func.func @two_sums(%x: tensor<8x4xf32>, %y: tensor<8x4xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<8xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<8xf32>) -> tensor<8xf32>
  %a = linalg.reduce { arith.addf } ins(%x : tensor<8x4xf32>) outs(%z0 : tensor<8xf32>) dimensions = [1]
  %e1 = tensor.empty() : tensor<8xf32>
  %z1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<8xf32>) -> tensor<8xf32>
  %b = linalg.reduce { arith.addf } ins(%y : tensor<8x4xf32>) outs(%z1 : tensor<8xf32>) dimensions = [1]
  return %a, %b : tensor<8xf32>, tensor<8xf32>
}
