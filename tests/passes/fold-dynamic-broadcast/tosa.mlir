// RUN: buddy-opt %s --pass-pipeline="builtin.module(func.func(tosa-to-linalg),canonicalize,cse)" | FileCheck %s --check-prefix=BEFORE
// RUN: buddy-opt %s --pass-pipeline="builtin.module(func.func(tosa-to-linalg),canonicalize,cse)" | buddy-opt --fold-dynamic-broadcast --canonicalize | FileCheck %s

// BEFORE: scf.if

// CHECK-LABEL: func @add
// CHECK-SAME: (%[[X:.*]]: tensor<1x?x8xf32>, %[[Y:.*]]: tensor<1x?x8xf32>)
// CHECK-NOT: scf.if
// CHECK: linalg.generic {{.*}} ins(%[[X]], %[[Y]] : tensor<1x?x8xf32>, tensor<1x?x8xf32>)
func.func @add(%x: tensor<1x?x8xf32>, %y: tensor<1x?x8xf32>) -> tensor<1x?x8xf32> {
  %r = tosa.add %x, %y : (tensor<1x?x8xf32>, tensor<1x?x8xf32>) -> tensor<1x?x8xf32>
  return %r : tensor<1x?x8xf32>
}

// An scf.if that is something else stays.

// CHECK-LABEL: func @other
// CHECK: scf.if
func.func @other(%x: tensor<?xf32>, %f: f32) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %d = tensor.dim %x, %c0 : tensor<?xf32>
  %one = arith.cmpi eq, %d, %c1 : index
  %r = scf.if %one -> (tensor<?xf32>) {
    %y = tensor.insert %f into %x[%c0] : tensor<?xf32>
    scf.yield %y : tensor<?xf32>
  } else {
    scf.yield %x : tensor<?xf32>
  }
  return %r : tensor<?xf32>
}
