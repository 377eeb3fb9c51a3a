// RUN: buddy-opt %s --elementwise-fusion | FileCheck %s

// RMSNorm becomes one reduction and one elementwise loop: the square goes into the sum, the root into the scaling.

// CHECK-LABEL: func @norm
// CHECK: linalg.fill
// CHECK: linalg.generic {{.*}}"reduction"]
// CHECK: arith.mulf
// CHECK: arith.addf
// CHECK: linalg.generic {{.*}}"parallel", "parallel"]
// CHECK: math.rsqrt
// CHECK: arith.mulf
// CHECK-NOT: linalg.generic
func.func @norm(%x: tensor<?x64xf32>, %w: tensor<64xf32>, %m: index) -> tensor<?x64xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%m) : tensor<?x64xf32>
  %r = tensor.empty(%m) : tensor<?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%r : tensor<?xf32>) -> tensor<?xf32>
  %square = linalg.mul ins(%x, %x : tensor<?x64xf32>, tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  %sum = linalg.reduce { arith.addf } ins(%square : tensor<?x64xf32>) outs(%z : tensor<?xf32>) dimensions = [1]
  %root = linalg.rsqrt ins(%sum : tensor<?xf32>) outs(%r : tensor<?xf32>) -> tensor<?xf32>
  %wide = linalg.broadcast ins(%root : tensor<?xf32>) outs(%e : tensor<?x64xf32>) dimensions = [1]
  %scaled = linalg.mul ins(%x, %wide : tensor<?x64xf32>, tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  %weights = linalg.broadcast ins(%w : tensor<64xf32>) outs(%e : tensor<?x64xf32>) dimensions = [0]
  %y = linalg.mul ins(%scaled, %weights : tensor<?x64xf32>, tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %y : tensor<?x64xf32>
}
