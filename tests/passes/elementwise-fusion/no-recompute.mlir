// RUN: buddy-opt %s --elementwise-fusion | FileCheck %s

// A contraction reads each element of its inputs many times: what makes them stays outside.

// CHECK-LABEL: func @into_contraction
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: linalg.matmul
func.func @into_contraction(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>, %o: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %e = tensor.empty() : tensor<8x16xf32>
  %a = linalg.exp ins(%x : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = linalg.matmul ins(%a, %w : tensor<8x16xf32>, tensor<16x32xf32>) outs(%o : tensor<8x32xf32>) -> tensor<8x32xf32>
  return %y : tensor<8x32xf32>
}

// Cosines of positions are not taken again for every head.

// CHECK-LABEL: func @over_heads
// CHECK: linalg.generic
// CHECK: math.cos
// CHECK: linalg.yield
// CHECK: linalg.generic
// CHECK: arith.mulf
func.func @over_heads(%angles: tensor<?x64xf32>, %q: tensor<9x?x64xf32>, %s: index) -> tensor<9x?x64xf32> {
  %e = tensor.empty(%s) : tensor<?x64xf32>
  %cos = linalg.generic {
      indexing_maps = [affine_map<(s, d) -> (s, d)>, affine_map<(s, d) -> (s, d)>],
      iterator_types = ["parallel", "parallel"]} ins(%angles : tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) {
    ^bb0(%a: f32, %o: f32):
      %r = math.cos %a : f32
      linalg.yield %r : f32
  } -> tensor<?x64xf32>
  %f = tensor.empty(%s) : tensor<9x?x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(h, s, d) -> (s, d)>, affine_map<(h, s, d) -> (h, s, d)>,
                       affine_map<(h, s, d) -> (h, s, d)>],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%cos, %q : tensor<?x64xf32>, tensor<9x?x64xf32>)
      outs(%f : tensor<9x?x64xf32>) {
    ^bb0(%c: f32, %x: f32, %o: f32):
      %r = arith.mulf %c, %x : f32
      linalg.yield %r : f32
  } -> tensor<9x?x64xf32>
  return %y : tensor<9x?x64xf32>
}

// A value with two readers is computed once.

// CHECK-LABEL: func @two_readers
// CHECK-COUNT-1: math.tanh
// CHECK-NOT: math.tanh
// CHECK: return
func.func @two_readers(%x: tensor<64xf32>, %y: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %e = tensor.empty() : tensor<64xf32>
  %t = linalg.tanh ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %a = linalg.add ins(%t, %y : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %b = linalg.mul ins(%t, %y : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  return %a, %b : tensor<64xf32>, tensor<64xf32>
}

// What is written into an argument is still written there.

// CHECK-LABEL: func @destination
// CHECK-SAME: %[[OUT:[a-z0-9]*]]: tensor<64xf32>)
// CHECK: bufferization.materialize_in_destination %{{.*}} in %[[OUT]]
func.func @destination(%x: tensor<64xf32>, %out: tensor<64xf32>) -> tensor<64xf32> {
  %r = linalg.exp ins(%x : tensor<64xf32>) outs(%out : tensor<64xf32>) -> tensor<64xf32>
  return %r : tensor<64xf32>
}
