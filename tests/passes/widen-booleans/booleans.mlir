// RUN: buddy-opt --widen-booleans %s | FileCheck %s

#id = affine_map<(d0) -> (d0)>

// A comparison writes bytes, a selection reads them, and the signature holds bytes too.
// CHECK-LABEL: func.func @compare_and_select(
// CHECK-SAME:    %{{.*}}: tensor<8xf32>, %[[MASK:.*]]: tensor<8xi8>) -> (tensor<8xi8>, tensor<8xf32>)
func.func @compare_and_select(%x: tensor<8xf32>, %mask: tensor<8xi1>) -> (tensor<8xi1>, tensor<8xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8xi1>
  // CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<8xi8>)
  // CHECK:   %[[C:.*]] = arith.cmpf
  // CHECK:   %[[B:.*]] = arith.extui %[[C]] : i1 to i8
  // CHECK:   linalg.yield %[[B]] : i8
  %0 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xi1>) {
  ^bb0(%in: f32, %out: i1):
    %c = arith.cmpf ogt, %in, %zero : f32
    linalg.yield %c : i1
  } -> tensor<8xi1>
  %f = tensor.empty() : tensor<8xf32>
  // CHECK: linalg.generic {{.*}} ins(%[[MASK]], %{{.*}} : tensor<8xi8>, tensor<8xf32>)
  // CHECK: ^bb0(%[[M:.*]]: i8, %[[V:.*]]: f32
  // CHECK:   %[[N:.*]] = arith.trunci %[[M]] : i8 to i1
  // CHECK:   arith.select %[[N]]
  %1 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]} ins(%mask, %x : tensor<8xi1>, tensor<8xf32>) outs(%f : tensor<8xf32>) {
  ^bb0(%m: i1, %in: f32, %out: f32):
    %s = arith.select %m, %in, %zero : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %0, %1 : tensor<8xi1>, tensor<8xf32>
}

// CHECK-LABEL: func.func @plain_ops(
// CHECK: tensor.extract_slice {{.*}} : tensor<8xi8> to tensor<2xi8>
// CHECK: %[[E:.*]] = tensor.extract %{{.*}} : tensor<8xi8>
// CHECK: arith.trunci %[[E]] : i8 to i1
func.func @plain_ops(%mask: tensor<8xi1>, %i: index) -> (tensor<2xi1>, i1) {
  %0 = tensor.extract_slice %mask[4] [2] [1] : tensor<8xi1> to tensor<2xi1>
  %1 = tensor.extract %mask[%i] : tensor<8xi1>
  return %0, %1 : tensor<2xi1>, i1
}

// Nothing boolean, nothing changed.
// CHECK-LABEL: func.func @others(%{{.*}}: tensor<8xi32>) -> tensor<8xi32>
// CHECK-NEXT: return
func.func @others(%x: tensor<8xi32>) -> tensor<8xi32> {
  return %x : tensor<8xi32>
}
