// RUN: buddy-opt --pass-pipeline='builtin.module(func.func(unshare-destinations),eliminate-empty-tensors,one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map})' %s | FileCheck %s

#id = affine_map<(d0) -> (d0)>

// One value for two destinations: each is written, nothing is allocated.
// CHECK-LABEL: func.func @two(
// CHECK-SAME:    %{{.*}}: memref<8xf32>, %[[A:.*]]: memref<8xf32>, %[[B:.*]]: memref<8xf32>)
// CHECK-NOT:   memref.alloc
// CHECK:       linalg.generic {{.*}} outs(%[[A]] : memref<8xf32>)
// CHECK:       linalg.copy ins(%[[A]] : memref<8xf32>) outs(%[[B]] : memref<8xf32>)
func.func @two(%x: tensor<8xf32>, %a: tensor<8xf32> {bufferization.writable = true}, %b: tensor<8xf32> {bufferization.writable = true}) -> (tensor<8xf32>, tensor<8xf32>) {
  %e = tensor.empty() : tensor<8xf32>
  %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %s = arith.addf %in, %in : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  %1 = bufferization.materialize_in_destination %0 in %a : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %2 = bufferization.materialize_in_destination %0 in %b : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %1, %2 : tensor<8xf32>, tensor<8xf32>
}
