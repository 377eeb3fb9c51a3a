// RUN: buddy-opt %s --fold-quantized-weights --canonicalize --cse | FileCheck %s

// What quantises activations: (m, g) and (h, q, r) are one loop each, and magnitudes are compared as integers.

// CHECK-DAG: #[[ALL:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[GROUP:.*]] = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func @quantise
// CHECK: linalg.generic {indexing_maps = [#[[ALL]], #[[GROUP]]], iterator_types = ["parallel", "reduction"]}
// CHECK-SAME: tensor<?x32xf32>) outs(%{{.*}} : tensor<?xi32>)
// CHECK: math.absf
// CHECK: arith.bitcast {{.*}} f32 to i32
// CHECK: arith.maxsi
// CHECK: arith.bitcast {{.*}} i32 to f32
// CHECK: linalg.generic {indexing_maps = [#[[ALL]], #[[GROUP]], #[[ALL]]], iterator_types = ["parallel", "parallel"]}
// CHECK: arith.fptosi
// CHECK: -> tensor<?x32xi8>
func.func @quantise(%x: tensor<?x2x2x4x4xf32>) -> (tensor<?x2x2x4x4xi8>, tensor<?x2xf32>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %most = arith.constant 127.0 : f32
  %m = tensor.dim %x, %c0 : tensor<?x2x2x4x4xf32>
  %e = tensor.empty(%m) : tensor<?x2xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x2xf32>) -> tensor<?x2xf32>
  %amax = linalg.generic {
      indexing_maps = [affine_map<(m, g, h, q, r) -> (m, g, h, q, r)>, affine_map<(m, g, h, q, r) -> (m, g)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x : tensor<?x2x2x4x4xf32>) outs(%z : tensor<?x2xf32>) {
    ^bb0(%v: f32, %o: f32):
      %a = math.absf %v : f32
      %r = arith.maximumf %a, %o : f32
      linalg.yield %r : f32
  } -> tensor<?x2xf32>
  %be = tensor.empty(%m) : tensor<?x2x2x4x4xi8>
  %q = linalg.generic {
      indexing_maps = [affine_map<(m, g, h, q, r) -> (m, g, h, q, r)>, affine_map<(m, g, h, q, r) -> (m, g)>,
                       affine_map<(m, g, h, q, r) -> (m, g, h, q, r)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%x, %amax : tensor<?x2x2x4x4xf32>, tensor<?x2xf32>) outs(%be : tensor<?x2x2x4x4xi8>) {
    ^bb0(%v: f32, %s: f32, %o: i8):
      %f = arith.divf %most, %s : f32
      %p = arith.mulf %v, %f : f32
      %e8 = math.roundeven %p : f32
      %b = arith.fptosi %e8 : f32 to i8
      linalg.yield %b : i8
  } -> tensor<?x2x2x4x4xi8>
  return %q, %amax : tensor<?x2x2x4x4xi8>, tensor<?x2xf32>
}

// What only looks like that, with an operand that is read backwards or at one place, stays as it is.
// CHECK-LABEL: func @backwards
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "parallel", "parallel", "parallel"]
func.func @backwards(%x: tensor<2x3x5x4xf32>) -> tensor<2x3x5x4xf32> {
  %e = tensor.empty() : tensor<2x3x5x4xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, g, q, r) -> (m, -g + 2, q, r)>, affine_map<(m, g, q, r) -> (m, g, q, r)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x : tensor<2x3x5x4xf32>) outs(%e : tensor<2x3x5x4xf32>) {
    ^bb0(%v: f32, %o: f32):
      linalg.yield %v : f32
  } -> tensor<2x3x5x4xf32>
  return %r : tensor<2x3x5x4xf32>
}
